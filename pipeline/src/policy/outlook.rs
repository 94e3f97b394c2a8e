//! The chance that a request makes its deadline, on the instance where it is best (SPEC A4 b, c): predicted wait in the queue
//! + drain of what the instance has before it + prefill of what is not cached + decode of a predicted number of tokens.
//!
//! Times are distributions: service times with the spread of their fit, output lengths as equally likely ones, both widened
//! and shifted by how earlier predictions fared ([`Skill`]); what comes of that is corrected by how often it came true
//! ([`Calibration`]). Invariants: unknown is not a time. What is not known (the
//! queue's drain, the length of the answer) is left out, so that the chance is too good rather than too bad, and without service
//! times there is no chance at all: nobody is refused without evidence. More time, or less work before it, never lowers a
//! chance. Cost: candidates are looked at in order until one makes it as good as certainly, usually the first; a request that
//! none can serve in time costs [`LENGTHS`] predictions for each. No state.

use operators::{DecodeWork, Prediction, PrefillWork, ServiceTime};

use crate::{
    ids::Micros,
    policy::{
        Calibration, CandidateCost, ClusterView, Deadline, InstanceView, QueueProfile, Ratio, Rejects, Skill, Takes,
        Tier, TierWeights, worth_of,
    },
};

/// Equally likely output lengths that stand for their distribution.
pub const LENGTHS: usize = 8;
/// Halvings in the search for the latest start: of a minute, to within 60 microseconds.
const HALVINGS: usize = 20;

/// What predictors say for one request.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Forecast {
    /// Equally likely output lengths by tier's number (0 is High), in order; empty: unknown.
    pub lengths: [Vec<u32>; 3],
    /// Service times of the variants that may serve it; those not listed are unknown.
    pub services: Vec<(String, ServiceTime)>,
    pub drain_tokens_per_second: Option<f64>,
    pub skill: Skill,
    pub calibration: Calibration,
    pub queue: QueueProfile,
    /// Share of the engines' time that lately went to answers that came too late, or is expected to (`waste`).
    pub missed_share: f64,
    /// Engine seconds of a request that started lately, on average; `None`: none did.
    pub mean_seconds: Option<f64>,
    /// Who was refused lately.
    pub turned_away: Rejects,
}

/// Whose chance is asked for.
#[derive(Debug, Clone, Copy)]
pub struct OutlookRequest<'a> {
    pub now: Micros,
    pub deadline: &'a Deadline,
    pub tier: Tier,
    /// Over all prompts.
    pub prompt_tokens: u32,
    /// Most tokens of one sequence.
    pub max_tokens: u32,
    pub sequences: u32,
    /// Where it may run, cheapest first.
    pub candidates: &'a [CandidateCost],
    pub view: &'a ClusterView,
    pub wait: Wait<'a>,
    /// The best chance it ever had by predicted times alone, as far as known: that of a start on arrival.
    pub best: f64,
}

/// Chances that decide.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Chances {
    /// The latest start is when, by predicted times alone, it has fallen to this share of the best that it had, or to `worth`.
    pub start: f64,
    /// With less, were it to start now, a start is not worth it while others run or can still make theirs; of a request of mean size
    /// (`waste`).
    pub worth: f64,
    /// With less, were it to start now, a start is not worth it where nothing runs either.
    pub alone: f64,
    /// With more, were it to start where nothing runs, it counts as one that could have been served.
    pub likely: f64,
    /// With less a request is refused.
    pub refuse: f64,
    /// Most requests that a start may have refused by the engine time that it takes (`turned_away`), times its chance; one that takes
    /// more waits until fewer are.
    pub displaced_max: f64,
}

impl Chances {
    /// A start with half a chance serves half a request. No price is never too high.
    fn is_dear(&self, price: Option<f64>, chance: f64) -> bool {
        price.is_some_and(|price| price > self.displaced_max * chance)
    }
}

/// What is before it in the gateway's queue.
#[derive(Debug, Clone, Copy)]
pub enum Wait<'a> {
    /// Nothing: it starts now.
    None,
    /// It comes to the queue, or has waited there with so many tokens of its own.
    Queue { weights: &'a TierWeights, own_tokens: u64 },
}

/// What is to be expected.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outlook {
    /// Chance of the deadline, where it is best.
    pub meet: f64,
    /// The same by predicted times alone, were it to start now; or the best that it had before, if that was better.
    pub best: f64,
    /// Mean seconds in the queue, as far as known.
    pub wait_seconds: f64,
    /// Mean seconds from now to the first token and to the end there.
    pub first_token_seconds: f64,
    pub whole_seconds: f64,
    /// Seconds from now to when the first token is due, and the whole answer, were it of mean length.
    pub first_token_due_seconds: f64,
    pub whole_due_seconds: Option<f64>,
    /// The latest start with the chance asked for, or now; before now, if none is worth it any more.
    pub start_by: Micros,
    /// The same whatever chance makes a start worth it, for engines: of those let in nobody is lost for that. What is too dear is: it
    /// goes after all others there, too.
    pub engine_by: Micros,
    /// The latest start that is worth it beside others, not before `start_by`; before now, if none is any more, or while too many would
    /// be refused for it. `None`: any is, as of deadlines that nobody stated: those are worth something even when they are missed.
    pub worth_by: Option<Micros>,
    /// The latest start that is worth it where nothing runs. `None` as there.
    pub alone_by: Option<Micros>,
    /// Where nothing runs it would be likely to make it, whoever is refused for it.
    pub is_met_alone: bool,
    /// For a request with too small a chance: how much less must be before it. All there is, if it has none even then.
    pub excess_seconds: f64,
    /// Of the engine, that it takes there, its answer of mean length, or the longest where that is not known.
    pub engine_seconds: f64,
}

/// A request on one instance: what it takes from its start.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Run {
    first: Prediction,
    prefill_seconds: f64,
    service: ServiceTime,
    /// All there, and its own.
    sequences: u32,
    own_sequences: u32,
    context_tokens: u64,
    skill: Skill,
    pub drain_seconds: f64,
}

impl Run {
    /// `None`: the service time of its variant is not known.
    pub fn of(request: &OutlookRequest<'_>, cost: &CandidateCost, forecast: &Forecast) -> Option<Run> {
        let instances = &request.view.instances;
        let place = instances.binary_search_by_key(&cost.instance, |instance| instance.instance).ok()?;
        let instance = &instances[place];
        let (_, service) = forecast.services.iter().find(|(variant, _)| **variant == *instance.variant)?;
        let engine = instance.engine.as_ref().filter(|_| request.view.mode.is_usable());
        let seen = engine.map_or(0, |engine| engine.running.saturating_add(engine.waiting));
        let beside = seen.max(instance.leased_requests);
        let cached_tokens = cost.hit_tokens.min(request.prompt_tokens);
        let uncached_tokens = request.prompt_tokens - cached_tokens;
        let prefill = service.prefill(&PrefillWork { uncached_tokens, cached_tokens, beside })?;
        let due = request.deadline.whole.unwrap_or(request.deadline.first_token);
        let queue_seconds = queue_before(service, instance, (cost, beside), due);
        let before = queue_seconds + cost.fetch.seconds;
        let first = Prediction { mean: prefill.mean + before, variance: prefill.variance };
        Some(Run {
            first,
            prefill_seconds: prefill.mean,
            service: *service,
            own_sequences: request.sequences,
            sequences: beside.saturating_add(request.sequences),
            context_tokens: engine.map_or(0, |engine| engine.context_tokens) + u64::from(request.prompt_tokens),
            skill: forecast.skill,
            drain_seconds: queue_seconds,
        })
    }

    /// The same run were there nothing before it and nothing beside it. `None`: its time is not known then.
    fn alone(&self, request: &OutlookRequest<'_>, cost: &CandidateCost) -> Option<Run> {
        let cached_tokens = cost.hit_tokens.min(request.prompt_tokens);
        let uncached_tokens = request.prompt_tokens - cached_tokens;
        let prefill = self.service.prefill(&PrefillWork { uncached_tokens, cached_tokens, beside: 0 })?;
        Some(Run {
            first: Prediction { mean: prefill.mean + cost.fetch.seconds, variance: prefill.variance },
            prefill_seconds: prefill.mean,
            sequences: self.own_sequences,
            context_tokens: u64::from(request.prompt_tokens),
            drain_seconds: 0.0,
            ..*self
        })
    }

    /// Seconds to the first token, as the fits have it.
    pub fn plain_first(&self) -> Prediction {
        self.first
    }

    /// Seconds to the end of an answer of so many tokens, as the fits have it. Where decode is not known, to the first token.
    pub fn plain_whole(&self, tokens: u32) -> Prediction {
        let work = DecodeWork {
            tokens: tokens.saturating_sub(1),
            sequences: self.sequences,
            context_tokens: self.context_tokens,
        };
        self.service.decode(&work).map_or(self.first, |decode| self.first.plus(&decode))
    }

    /// Seconds of the engine that it takes if each of its sequences comes to so many tokens: its prompt's and its part of the batches.
    pub fn engine_seconds(&self, tokens: u32) -> f64 {
        let decode = self.plain_whole(tokens).mean - self.first.mean;
        self.prefill_seconds + decode * f64::from(self.own_sequences) / f64::from(self.sequences.max(1))
    }

    fn first(&self) -> Prediction {
        corrected(self.first, self.skill.first)
    }

    fn whole(&self, tokens: u32) -> Prediction {
        corrected(self.plain_whole(tokens), self.skill.whole)
    }
}

/// What prompts there go before a request that is due then. An engine computes those due first first, in chunks: so what is due
/// after it holds it up by one at most. Where no prompt is known by its deadline, all that is queued.
fn queue_before(
    service: &ServiceTime,
    instance: &InstanceView,
    (cost, beside): (&CandidateCost, u32),
    due: Micros,
) -> f64 {
    let tokens = |is_before: bool| {
        let prompts = instance.prompts.iter().filter(|prompt| (prompt.due <= due) == is_before);
        prompts.fold(0u32, |sum, prompt| sum.saturating_add(prompt.tokens))
    };
    let after = tokens(false);
    if after == 0 {
        return cost.queue.seconds;
    }
    let uncached_tokens = tokens(true).saturating_add(after.min(service.chunk_tokens));
    let known = service.prefill(&PrefillWork { uncached_tokens, cached_tokens: 0, beside });
    known.map_or(cost.queue.seconds, |known| known.mean.min(cost.queue.seconds))
}

/// A prediction shifted and widened by how earlier ones fared.
fn corrected(plain: Prediction, ratio: Ratio) -> Prediction {
    let factor = libm::exp(ratio.mean);
    let mean = plain.mean * factor;
    Prediction { mean, variance: plain.variance * factor * factor + mean * mean * ratio.variance }
}

/// The parts of a chance: times from a start to the first token and to the end, with what each is due after `now`.
struct Race {
    first: (Prediction, f64),
    /// One for each length that the answer may have; none if it may take whatever it takes.
    wholes: Vec<(Prediction, f64)>,
    whole_seconds: f64,
    /// Of one sequence, on average; `None`: not known.
    mean_tokens: Option<u32>,
    calibration: Calibration,
}

impl Race {
    fn of(run: &Run, request: &OutlookRequest<'_>, forecast: &Forecast) -> Race {
        let lengths = forecast.lengths[usize::from(request.tier.number())].as_slice();
        let seconds = |by: Micros| (by - request.now) as f64 / 1e6;
        // An unknown length is one token: what is certain to be needed.
        let known: &[u32] = if lengths.is_empty() { &[1] } else { lengths };
        let (mut wholes, mut sum, mut tokens) = (Vec::with_capacity(known.len()), 0.0, 0u64);
        let mut before: Option<(u32, Prediction)> = None;
        for length in known {
            let length = (*length).clamp(1, request.max_tokens.max(1));
            tokens += u64::from(length);
            let whole =
                before.filter(|(other, _)| *other == length).map_or_else(|| run.whole(length), |(_, same)| same);
            before = Some((length, whole));
            sum += whole.mean;
            wholes.extend(request.deadline.whole_by(length).map(|by| (whole, seconds(by))));
        }
        let first = (run.first(), seconds(request.deadline.first_token));
        let mean_tokens = (!lengths.is_empty()).then(|| (tokens / known.len() as u64) as u32);
        let whole_seconds = sum / known.len() as f64;
        Race { first, wholes, whole_seconds, mean_tokens, calibration: forecast.calibration }
    }

    fn whole_due_seconds(&self) -> Option<f64> {
        let sum: f64 = self.wholes.iter().map(|(_, due)| due).sum();
        (!self.wholes.is_empty()).then(|| sum / self.wholes.len() as f64)
    }

    /// The chance after a wait.
    fn meet(&self, wait: &Prediction) -> f64 {
        self.calibration.of(self.plain_meet(wait))
    }

    /// The same as predicted times have it. Nothing takes less than no time.
    fn plain_meet(&self, wait: &Prediction) -> f64 {
        let within = |(takes, due): &(Prediction, f64)| if *due > 0.0 { wait.plus(takes).within(*due) } else { 0.0 };
        let first = within(&self.first);
        if self.wholes.is_empty() {
            return first;
        }
        let wholes: f64 = self.wholes.iter().map(within).sum();
        first.min(wholes / self.wholes.len() as f64)
    }

    /// The longest wait, in seconds and not below `least`, that leaves what is asked; `None`: not even the least does.
    fn longest_wait(&self, asked: &Asked, least: f64) -> Option<f64> {
        let is_left = |mean: f64| {
            let plain = self.plain_meet(&Prediction { mean, variance: 0.0 });
            plain >= asked.plain && self.calibration.of(plain) >= asked.meet
        };
        if !is_left(least) {
            return None;
        }
        let (mut good, mut bad) = (least, self.first.1.max(least));
        for _ in 0..HALVINGS {
            let middle = 0.5 * (good + bad);
            if is_left(middle) { good = middle } else { bad = middle }
        }
        Some(good)
    }
}

/// Chances that a wait must leave.
struct Asked {
    meet: f64,
    /// Before it is corrected.
    plain: f64,
}

impl Asked {
    fn meet(meet: f64) -> Asked {
        Asked { meet, plain: 0.0 }
    }
}

/// The race on one candidate.
struct Entry<'a> {
    meet: f64,
    /// Were it to start now.
    now: f64,
    best: f64,
    race: Race,
    wait: Prediction,
    good_wait: Option<f64>,
    /// The same, if a start is worth it then.
    longest_wait: Option<f64>,
    worth: f64,
    /// Requests that would be refused for it; `None`: it has no price.
    price: Option<f64>,
    run: Run,
    cost: &'a CandidateCost,
}

/// What is to be expected of a request that starts now.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StartChance {
    pub meet: f64,
    /// The same as predicted times have it, before it is corrected by how often such a chance came true.
    pub plain: f64,
    /// Of the engine, that it takes.
    pub engine_seconds: f64,
}

/// The chance of a request that starts now, as this run.
pub fn chance(run: &Run, request: &OutlookRequest<'_>, forecast: &Forecast) -> StartChance {
    let race = Race::of(run, request, forecast);
    let plain = race.plain_meet(&Prediction::default());
    let engine_seconds = run.engine_seconds(race.mean_tokens.unwrap_or(request.max_tokens));
    StartChance { meet: forecast.calibration.of(plain), plain, engine_seconds }
}

/// What is to be expected of a request. `None`: nothing is known of any candidate.
pub fn outlook(request: &OutlookRequest<'_>, forecast: &Forecast, chances: Chances) -> Option<Outlook> {
    let instances = request.view.instances.iter().filter(|instance| instance.is_ready).count();
    let mut found: Option<Entry<'_>> = None;
    for cost in request.candidates {
        let Some(run) = Run::of(request, cost, forecast) else { continue };
        let race = Race::of(&run, request, forecast);
        let plain = race.plain_meet(&Prediction::default());
        let now = race.calibration.of(plain);
        // A request whose chance was never good, as that of a short one whose time cannot be told well, is late when it has lost
        // a part of it, as others are. Of the predicted times alone: that engines hurry with what has little time left is learnt from
        // those that start, and is no reason to let it come to that.
        let best = request.best.max(plain);
        let seconds = race.mean_tokens.map(|tokens| run.engine_seconds(tokens));
        let worth = seconds.map_or(chances.worth, |seconds| worth_of(chances.worth, seconds, forecast.mean_seconds));
        let takes = Takes {
            tier: request.tier,
            engine_seconds: seconds.unwrap_or(0.0),
            stay_seconds: race.whole_seconds,
            instances,
        };
        let price = request.deadline.is_stated.then(|| forecast.turned_away.price(request.now, &takes));
        let is_dear = chances.is_dear(price, now);
        let longest = |meet: f64| race.longest_wait(&Asked { meet, plain: chances.start * best }, 0.0);
        let (good_wait, longest_wait) = if is_dear { (None, None) } else { (longest(0.0), longest(worth)) };
        // One that is late already goes after all that are not.
        let start_by = longest_wait.map_or(Micros::MAX, |seconds| request.now + micros(seconds));
        let wait = wait(request, forecast, start_by);
        let meet = race.meet(&wait);
        if found.as_ref().is_none_or(|other| meet > other.meet) {
            found = Some(Entry { meet, now, best, race, wait, good_wait, longest_wait, worth, price, run, cost });
        }
        if meet >= chances.start {
            break;
        }
    }
    let Entry { meet, now, best, race, wait, good_wait, longest_wait, worth, price, run, cost } = found?;
    let drain_seconds = run.drain_seconds;
    let before = wait.mean + drain_seconds;
    let by = |wait: Option<f64>| wait.map_or(request.now - 1, |seconds| request.now + micros(seconds));
    let latest = |race: &Race, chance: f64, now: f64| {
        let wait = race.longest_wait(&Asked::meet(chance), 0.0).filter(|_| !chances.is_dear(price, now));
        by(wait)
    };
    let alone = Some(&run).filter(|_| request.deadline.is_stated).and_then(|run| run.alone(request, cost));
    let alone = alone.map(|run| Race::of(&run, request, forecast));
    let alone = alone.map(|race| (race.meet(&Prediction::default()), race));
    let asked_alone = worth.min(chances.alone);
    let excess = || {
        race.longest_wait(&Asked::meet(chances.refuse), -drain_seconds).map_or(before, |longest| wait.mean - longest)
    };
    Some(Outlook {
        meet,
        best,
        wait_seconds: wait.mean,
        first_token_seconds: wait.mean + race.first.0.mean,
        whole_seconds: wait.mean + race.whole_seconds,
        first_token_due_seconds: race.first.1,
        whole_due_seconds: race.whole_due_seconds(),
        start_by: by(longest_wait),
        engine_by: by(good_wait),
        worth_by: request.deadline.is_stated.then(|| latest(&race, worth, now)),
        alone_by: alone.as_ref().map(|(now, race)| latest(race, asked_alone, *now)),
        is_met_alone: alone.is_none_or(|(now, _)| now >= chances.likely),
        engine_seconds: run.engine_seconds(race.mean_tokens.unwrap_or(request.max_tokens)),
        excess_seconds: if meet < chances.refuse { excess() } else { 0.0 },
    })
}

fn micros(seconds: f64) -> Micros {
    (seconds * 1e6) as Micros
}

/// Seconds in the queue before what has to start by then; nothing, where the drain is not known.
fn wait(request: &OutlookRequest<'_>, forecast: &Forecast, start_by: Micros) -> Prediction {
    let Wait::Queue { weights, own_tokens } = request.wait else { return Prediction::default() };
    let Some(rate) = forecast.drain_tokens_per_second.filter(|rate| *rate > 0.0) else { return Prediction::default() };
    let ahead = forecast.queue.ahead(request.tier, start_by, weights);
    let mean = (ahead.tokens - own_tokens as f64).max(0.0) / rate;
    // As if each request before it took its own time: their sum spreads by the root of their number.
    Prediction { mean, variance: mean * mean / (ahead.requests + 1.0) }
}

#[cfg(test)]
#[path = "outlook_tests.rs"]
mod tests;
