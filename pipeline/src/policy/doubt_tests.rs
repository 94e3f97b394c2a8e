//! A fleet in steps of a tenth of a second, run by the policies alone: what an entry comes to believe when engines are slow for a while, or
//! stand still, and what becomes of it afterwards.

use operators::{LinearFit, ServiceTime};

use super::*;
use crate::{
    ids::InstanceId,
    policy::{
        BucketFit, CandidateCost, ClusterView, Deadline, DeadlineConfig, Engines, Forecast, Judgement, Learnt, Met,
        Outlook, OutlookRequest, Run, SloSeen, Term, Tier, Venture, ViewMode, Wait, chance, judge, outlook,
        test_instance, test_policy,
    },
};

const SECOND: Micros = 1_000_000;
const TICK: Micros = SECOND / 10;
/// What a request takes by what is predicted of it, and what it may take.
const TAKES: Micros = SECOND;
const BUDGET: Micros = 4 * SECOND;

struct Waiting {
    deadline: Deadline,
    outlook: Outlook,
}

struct Runs {
    since: Micros,
    until: Micros,
    deadline: Deadline,
    run: Run,
    predicted: f64,
    venture: Venture,
}

/// Engines that run one request at a time, and the entry before them.
struct World {
    now: Micros,
    /// The same request comes each time that so much has passed.
    every: Micros,
    engines: Vec<Option<Runs>>,
    waiting: Vec<Waiting>,
    learnt: Learnt,
    config: DeadlineConfig,
    met: u32,
}

impl World {
    fn new(engines: usize, every: Micros) -> World {
        let engines = (0..engines).map(|_| None).collect();
        let config = test_policy().deadline;
        World { now: 0, every, engines, waiting: Vec::new(), learnt: Learnt::default(), config, met: 0 }
    }

    /// Requests that made it in so many seconds, in which each takes so many times what it should.
    fn seconds(&mut self, seconds: i64, slowness: f64) -> u32 {
        let (until, before) = (self.now + seconds * SECOND, self.met);
        while self.now < until {
            self.tick(slowness);
        }
        self.met - before
    }

    /// All that runs takes so much longer.
    fn stand_still(&mut self, time: Micros) {
        self.engines.iter_mut().flatten().for_each(|runs| runs.until += time);
        self.now += time;
    }

    fn tick(&mut self, slowness: f64) {
        self.now += TICK;
        self.end_what_is_over();
        for _ in 0..self.now / self.every - (self.now - TICK) / self.every {
            let by = self.now + BUDGET;
            let deadline = Deadline { first_token: by, whole: Some(by), per_token_us: None, is_stated: true };
            let outlook = self.outlook(&deadline);
            self.waiting.push(Waiting { deadline, outlook });
        }
        self.refuse_what_has_no_chance();
        while let Some(place) = self.engines.iter().position(Option::is_none) {
            let may_start = |waiting: &Waiting| waiting.outlook.alone_by.is_none_or(|by| by >= self.now);
            let Some(next) = self.waiting.iter().position(may_start) else { break };
            let deadline = self.waiting.remove(next).deadline;
            self.start(place, deadline, slowness);
        }
    }

    fn start(&mut self, place: usize, deadline: Deadline, slowness: f64) {
        let forecast = self.forecast();
        let (view, candidates) = (self.view(), [self.cost(place)]);
        let request = self.request(&deadline, &candidates, &view);
        let run = Run::of(&request, &candidates[0], &forecast).unwrap();
        let chance = chance(&run, &request, &forecast);
        let venture = Venture::new(self.now, chance.engine_seconds, chance.meet).unwrap();
        self.learnt.started(&venture);
        let until = self.now + (TAKES as f64 * slowness) as Micros;
        self.engines[place] = Some(Runs { since: self.now, until, deadline, run, predicted: chance.plain, venture });
    }

    /// Engines drop what is past its deadline.
    fn end_what_is_over(&mut self) {
        let now = self.now;
        for engine in &mut self.engines {
            let Some(runs) = engine.take_if(|runs| runs.until.min(runs.deadline.first_token) <= now) else { continue };
            let is_met = if runs.until <= runs.deadline.first_token { Met::Yes } else { Met::No };
            let seconds = (now - runs.since) as f64 / 1e6;
            let predicted = runs.run.plain_first().mean;
            if is_met == Met::Yes || seconds > predicted {
                self.learnt.skill.learn_first(now, 1000, (predicted, seconds));
            }
            self.learnt.ended(now, (runs.predicted, is_met), Some((&runs.venture, is_met)));
            self.met += u32::from(is_met == Met::Yes);
        }
    }

    fn refuse_what_has_no_chance(&mut self) {
        let outlooks: Vec<Outlook> = self.waiting.iter().map(|waiting| self.outlook(&waiting.deadline)).collect();
        self.waiting.iter_mut().zip(outlooks).for_each(|(waiting, outlook)| waiting.outlook = outlook);
        let engines = if self.engines.iter().any(Option::is_none) { Engines::Idle } else { Engines::Busy };
        let (now, config, learnt) = (self.now, &self.config, &mut self.learnt);
        self.waiting.retain(|Waiting { deadline, outlook }| {
            let seen = SloSeen { deadline: *deadline, outlook: Some(*outlook), is_trial: false };
            let is_refused = matches!(judge(&seen, now, (Tier::High, 0.5), config), Judgement::Refuse { .. });
            if is_refused {
                let could = Some(outlook.engine_seconds).filter(|_| outlook.is_met_alone);
                learnt.refused((now, Tier::High), could, engines);
            }
            !is_refused
        });
    }

    fn outlook(&self, deadline: &Deadline) -> Outlook {
        let (view, forecast) = (self.view(), self.forecast());
        let mut candidates: Vec<CandidateCost> = (0..self.engines.len()).map(|place| self.cost(place)).collect();
        candidates.sort_by(|a, b| a.queue.seconds.total_cmp(&b.queue.seconds));
        let chances = self.config.chances(Tier::High, forecast.missed_share);
        outlook(&self.request(deadline, &candidates, &view), &forecast, chances).unwrap()
    }

    fn request<'a>(
        &self,
        deadline: &'a Deadline,
        candidates: &'a [CandidateCost],
        view: &'a ClusterView,
    ) -> OutlookRequest<'a> {
        OutlookRequest {
            now: self.now,
            deadline,
            tier: Tier::High,
            prompt_tokens: 1000,
            max_tokens: 1,
            sequences: 1,
            candidates,
            view,
            wait: Wait::None,
            best: 0.0,
        }
    }

    /// 1 s for the prompt, whatever else.
    fn forecast(&self) -> Forecast {
        let prefill = Some(LinearFit {
            samples: 0,
            coefficients: [TAKES as f64 / 2e6, 0.0, 0.0, 0.0],
            covariance: [[0.0; 4]; 4],
            noise: 1e-4,
        });
        Forecast {
            lengths: [vec![1], vec![1], vec![1]],
            services: vec![("default".into(), ServiceTime { prefill, decode: None, chunk_tokens: 512 })],
            skill: self.learnt.skill(self.now, 1000),
            calibration: self.learnt.calibration(self.now),
            missed_share: self.learnt.missed_share(self.now),
            mean_seconds: self.learnt.waste.mean_seconds(),
            turned_away: self.learnt.turned_away.lately(self.now),
            ..Forecast::default()
        }
    }

    fn view(&self) -> ClusterView {
        let instances = (0..self.engines.len() as u32).map(test_instance).collect();
        ClusterView { mode: ViewMode::Exact, as_of: Some(self.now), instances, least_loaded: Vec::new() }
    }

    /// What runs there is thought to end as predicted.
    fn cost(&self, place: usize) -> CandidateCost {
        let left = self.engines[place].as_ref().map_or(0, |runs| (runs.since + TAKES - self.now).max(0));
        let (none, seconds) = (Term::default(), left as f64 / 1e6);
        CandidateCost {
            instance: InstanceId(place as u32),
            hit_tokens: 0,
            fetch_tokens: 0,
            queue: Term { seconds, ..none },
            prefill: none,
            fetch: none,
            interference: none,
            total_seconds: seconds,
            error_seconds: 0.0,
            compared_seconds: seconds,
            bucket: BucketFit::FREE,
            has_room: true,
        }
    }
}

/// Scenario: two engines with one request a second; for a minute all take ten times as long, so that nothing can make it; then they take
/// what they did. The same with four requests a second, twice what the engines carry.
/// Guarantees: half a minute later as many make it as before.
#[test]
fn a_slow_minute_is_not_believed_for_good() {
    for every in [SECOND, SECOND / 4] {
        let mut world = World::new(2, every);
        let before = world.seconds(60, 1.0);
        let slow = world.seconds(60, 10.0);
        world.seconds(30, 1.0);
        let after = world.seconds(60, 1.0);
        assert!(
            before >= 50 && slow <= 8 && after * 10 >= before * 9,
            "{before}, {slow}, {after} at one in {every} us"
        );
    }
}

/// Scenario: ten engines with twice the requests that they carry, all of which stand still for as long as a request may take.
/// Guarantees: ten seconds later nine in ten make it of those that did, and a further ten later all.
#[test]
fn a_moment_in_which_all_stands_still_is_over_once_it_is() {
    let mut world = World::new(10, TICK / 2);
    world.seconds(60, 1.0);
    let before = world.seconds(10, 1.0);
    world.stand_still(BUDGET);
    world.seconds(10, 1.0);
    let next = world.seconds(10, 1.0);
    let after = world.seconds(10, 1.0);
    assert!(next * 10 >= before * 9 && after * 20 >= before * 19, "{before}, {next}, {after}");
}

/// Scenario: nothing is refused; a request is refused beside an idle engine, and again; one starts.
/// Guarantees: all is believed; less and less from the first refusal on, and a tenth at least; all again.
#[test]
fn doubt_grows_until_something_starts() {
    let mut doubt = Doubt::default();
    assert_eq!(doubt.believed(7 * SECOND), 1.0);
    doubt.refused(10 * SECOND);
    doubt.refused(14 * SECOND);
    let believed = |doubt: &Doubt, seconds| doubt.believed(seconds * SECOND);
    assert!((believed(&doubt, 15) - (-1.0f64).exp()).abs() < 1e-12 && believed(&doubt, 12) > believed(&doubt, 13));
    assert_eq!((believed(&doubt, 9), believed(&doubt, 1_000)), (1.0, BELIEVED_MIN));
    assert_eq!((doubt.end(1_000 * SECOND), doubt.believed(2_000 * SECOND)), (BELIEVED_MIN, 1.0));
}
