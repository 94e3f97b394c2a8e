//! What the entry learns of itself: how fast its queue drains, how predictions of service time fare, what has come lately, how
//! often a predicted chance came true, and what misses cost (SPEC A4: "its error is itself a metric"). All of it is believed as far as
//! there is no [`Doubt`].
//!
//! Plain meters without clock or lock. Invariants: nothing is said before there is evidence ([`GRANTS_MIN`],
//! [`RATIOS_MIN`]); a drain that stops grows slower with every look. Cost: O(1) each. State: a few numbers,
//! [`BINS`] bins a tier, and what [`Upcoming`] and [`TurnedAway`] remember.

use crate::{
    ids::Micros,
    policy::{Calibration, CalibrationMeter, Doubt, Refused, Tier, TurnedAway, Upcoming, Venture, WasteMeter},
};

/// Grants from the queue before its drain is known.
pub const GRANTS_MIN: u64 = 8;
/// Finished requests before the error of predictions is known.
pub const RATIOS_MIN: f64 = 8.0;
/// Bins of the reliability curve.
pub const BINS: usize = 10;
/// Seconds after which a grant counts 1/e.
const DRAIN_SPAN_S: f64 = 20.0;
/// What an outcome's weight is multiplied by with each later one.
const FORGETTING: f64 = 0.98;
/// Spread of predictions, as a variance of the logarithm, before their error is known: 30 %.
const PRIOR_VARIANCE: f64 = 0.09;
/// A single outcome this many times off counts no more than that.
const RATIO_MAX: f64 = 20.0;
/// Variance that predictions have more than before, once 1/e of what was learnt of them is believed.
const DOUBT_VARIANCE: f64 = 0.25;
/// Outcomes that those of one second count as, at most. Machines stand still now and then, and all that runs is late by it at once: taken
/// as they are, such outcomes would say for the next fifty that nothing can make its deadline, and so that few are let in to say otherwise.
const EACH_SECOND: f64 = 10.0;
/// Nor does one that is further from the others than so many of their deviations, or than a factor of e if that is more. A world that has
/// changed is still followed, since deviations grow.
const DEVIATIONS_MAX: f64 = 3.0;

/// Tokens a second that leave the queue while something waits.
#[derive(Debug, Clone, Default)]
pub struct DrainMeter {
    /// The last grant, or since when something waits.
    since: Option<Micros>,
    tokens: f64,
    seconds: f64,
    grants: u64,
}

impl DrainMeter {
    /// Something waits now.
    pub fn began(&mut self, now: Micros) {
        self.since.get_or_insert(now);
    }

    /// A request of so many tokens got its lease.
    pub fn granted(&mut self, now: Micros, tokens: u64) {
        let Some(since) = self.since.replace(now) else { return };
        let (tokens_before, seconds) = self.aged(now - since);
        (self.tokens, self.seconds) = (tokens_before + tokens as f64, seconds);
        self.grants += 1;
    }

    /// Nothing waits any more.
    pub fn emptied(&mut self) {
        self.since = None;
    }

    /// `None`: too little was seen.
    pub fn tokens_per_second(&self, now: Micros) -> Option<f64> {
        let (tokens, seconds) = self.since.map_or((self.tokens, self.seconds), |since| self.aged(now - since));
        (self.grants >= GRANTS_MIN && seconds > 0.0).then(|| tokens / seconds)
    }

    fn aged(&self, us: Micros) -> (f64, f64) {
        let seconds = us.max(0) as f64 / 1e6;
        let kept = libm::exp(-seconds / DRAIN_SPAN_S);
        (self.tokens * kept, self.seconds * kept + seconds)
    }
}

/// What one more outcome counts, from 0 to 1, if those of a moment count as one and those of a second as so many.
pub(super) fn counts(last: &mut Option<Micros>, now: Micros, each_second: f64) -> f64 {
    let before = last.replace(now.max(last.unwrap_or(now)));
    before.map_or(1.0, |before| (each_second * (now - before).max(0) as f64 / 1e6).min(1.0))
}

/// How actual times compare with predicted ones, in logarithms.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ratio {
    pub mean: f64,
    pub variance: f64,
}

impl Default for Ratio {
    fn default() -> Self {
        Self { mean: 0.0, variance: PRIOR_VARIANCE }
    }
}

/// Errors of predicted times to the first token and to the end, from dispatch, given the actual length.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Skill {
    pub first: Ratio,
    pub whole: Ratio,
}

#[derive(Debug, Clone, Default)]
struct RatioMeter {
    /// Of the last outcome.
    last: Option<Micros>,
    /// Outcomes, as far as they count.
    samples: f64,
    weight: f64,
    sum: f64,
    squares: f64,
}

impl RatioMeter {
    fn learn(&mut self, now: Micros, predicted: f64, actual: f64) {
        if !(predicted > 0.0 && actual > 0.0) {
            return;
        }
        let counts = counts(&mut self.last, now, EACH_SECOND);
        let ratio = libm::log((actual / predicted).clamp(1.0 / RATIO_MAX, RATIO_MAX));
        let ratio = if self.samples < RATIOS_MIN { ratio } else { self.believed(ratio) };
        let kept = 1.0 - (1.0 - FORGETTING) * counts;
        self.samples += counts;
        self.weight = self.weight * kept + counts;
        self.sum = self.sum * kept + counts * ratio;
        self.squares = self.squares * kept + counts * ratio * ratio;
    }

    /// The ratio, or the nearest to it that is not too far from the others.
    fn believed(&self, ratio: f64) -> f64 {
        let known = self.ratio();
        let reach = f64::max(DEVIATIONS_MAX * known.variance.sqrt(), 1.0);
        ratio.clamp(known.mean - reach, known.mean + reach)
    }

    /// Of what was learnt this share stays; less than one outcome is none.
    fn fade(&mut self, kept: f64) {
        if self.weight * kept < 1.0 {
            *self = RatioMeter::default();
            return;
        }
        self.weight *= kept;
        self.sum *= kept;
        self.squares *= kept;
    }

    fn ratio_or(&self, other: &RatioMeter) -> Ratio {
        if self.samples < RATIOS_MIN { other.ratio() } else { self.ratio() }
    }

    fn ratio(&self) -> Ratio {
        if self.samples < RATIOS_MIN {
            return Ratio::default();
        }
        let mean = self.sum / self.weight;
        Ratio { mean, variance: (self.squares / self.weight - mean * mean).max(0.0) }
    }
}

/// Classes of prompt length whose errors are learnt apart: short requests are off by a step, long ones by a share.
pub const SIZES: usize = 5;
/// Prompt tokens from which the second class begins; each next one begins at four times as many.
const SIZE_FIRST: u32 = 64;

fn size_of(prompt_tokens: u32) -> usize {
    let octaves = (prompt_tokens / SIZE_FIRST).checked_ilog2().map_or(0, |octaves| octaves / 2 + 1);
    (octaves as usize).min(SIZES - 1)
}

/// Learns [`Skill`], of all requests and of each class of prompt length.
#[derive(Debug, Clone, Default)]
pub struct SkillMeter {
    all: Meters,
    sizes: [Meters; SIZES],
}

#[derive(Debug, Clone, Default)]
struct Meters {
    first: RatioMeter,
    whole: RatioMeter,
}

impl SkillMeter {
    /// Seconds predicted and actual, of a request with such a prompt.
    pub fn learn_first(&mut self, now: Micros, prompt_tokens: u32, (predicted, actual): (f64, f64)) {
        self.all.first.learn(now, predicted, actual);
        self.sizes[size_of(prompt_tokens)].first.learn(now, predicted, actual);
    }

    pub fn learn_whole(&mut self, now: Micros, prompt_tokens: u32, (predicted, actual): (f64, f64)) {
        self.all.whole.learn(now, predicted, actual);
        self.sizes[size_of(prompt_tokens)].whole.learn(now, predicted, actual);
    }

    /// Of requests with such a prompt, as far as there is evidence of them; else of all.
    pub fn skill(&self, prompt_tokens: u32) -> Skill {
        let own = &self.sizes[size_of(prompt_tokens)];
        Skill { first: own.first.ratio_or(&self.all.first), whole: own.whole.ratio_or(&self.all.whole) }
    }

    /// Of what was learnt this share stays, from 0 to 1.
    pub fn fade(&mut self, kept: f64) {
        let all = [&mut self.all].into_iter().chain(&mut self.sizes);
        all.flat_map(|meters| [&mut meters.first, &mut meters.whole]).for_each(|meter| meter.fade(kept));
    }

    /// Of all requests.
    pub fn overall(&self) -> Skill {
        Skill { first: self.all.first.ratio(), whole: self.all.whole.ratio() }
    }
}

/// Outcomes of one bin of predicted chances.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Bin {
    pub requests: u64,
    pub met: u64,
    /// Sum of the predicted chances.
    pub predicted: f64,
}

/// Predicted chance against the share that came true, by tier.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Reliability([[Bin; BINS]; 3]);

impl Reliability {
    pub fn learn(&mut self, tier: Tier, predicted: f64, is_met: Met) {
        let place = ((predicted * BINS as f64) as usize).min(BINS - 1);
        let bin = &mut self.0[usize::from(tier.number())][place];
        bin.requests += 1;
        bin.met += u64::from(is_met == Met::Yes);
        bin.predicted += predicted;
    }

    /// Bins with outcomes: tier, place and what is in it.
    pub fn bins(&self) -> impl Iterator<Item = (Tier, usize, Bin)> {
        [Tier::High, Tier::Medium, Tier::Low].into_iter().flat_map(|tier| {
            let bins = self.0[usize::from(tier.number())].iter().copied().enumerate();
            bins.filter(|(_, bin)| bin.requests > 0).map(move |(place, bin)| (tier, place, bin))
        })
    }
}

impl Skill {
    /// The same where only this share of what was learnt is believed.
    fn doubted(self, believed: f64) -> Skill {
        let more = DOUBT_VARIANCE * (1.0 / believed - 1.0);
        let wider = |ratio: Ratio| Ratio { variance: ratio.variance + more, ..ratio };
        Skill { first: wider(self.first), whole: wider(self.whole) }
    }
}

/// All of it.
#[derive(Debug, Clone, Default)]
pub struct Learnt {
    pub drain: DrainMeter,
    pub skill: SkillMeter,
    pub calibration: CalibrationMeter,
    pub reliability: Reliability,
    pub upcoming: Upcoming,
    pub turned_away: TurnedAway,
    pub waste: WasteMeter,
    pub doubt: Doubt,
}

/// What engines did when a request was refused since a miss was predicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engines {
    /// All that could serve it had something to do.
    Busy,
    /// One had not.
    Idle,
}

impl Learnt {
    /// A request is refused since a miss is predicted; `engine_seconds`: what it would have taken, if it could have been served.
    /// Who is refused beside an idle engine is not refused for want of engine time, and has no price.
    pub fn refused(&mut self, (now, tier): (Micros, Tier), engine_seconds: Option<f64>, engines: Engines) {
        match (engines, engine_seconds) {
            (Engines::Idle, _) => self.doubt.refused(now),
            (Engines::Busy, Some(engine_seconds)) => {
                self.turned_away.refused(Refused { at: now, tier, engine_seconds })
            }
            (Engines::Busy, None) => {}
        }
    }

    /// A request starts for its chance.
    pub fn started(&mut self, venture: &Venture) {
        self.end_doubt(venture.at);
        self.waste.started(venture);
    }

    /// A request that had started for its chance, as it was predicted, has ended; and whether what it took was of use.
    pub fn ended(&mut self, now: Micros, (predicted, is_met): (f64, Met), took: Option<(&Venture, Met)>) {
        self.end_doubt(now);
        self.calibration.learn(now, predicted, is_met);
        if let Some((venture, is_of_use)) = took {
            self.waste.ended(now, venture, is_of_use);
        }
    }

    /// How predictions for such a prompt fare, as far as that is believed.
    pub fn skill(&self, now: Micros, prompt_tokens: u32) -> Skill {
        self.skill.skill(prompt_tokens).doubted(self.doubt.believed(now))
    }

    /// What chances are worth, as far as that is believed.
    pub fn calibration(&self, now: Micros) -> Calibration {
        let believed = self.doubt.believed(now);
        if believed == 1.0 {
            return self.calibration.calibration();
        }
        let mut faded = self.calibration.clone();
        faded.fade(believed);
        faded.calibration()
    }

    /// The share of the engines' time that misses take, as far as it is believed.
    pub fn missed_share(&self, now: Micros) -> f64 {
        self.waste.missed_share(now) * self.doubt.believed(now)
    }

    fn end_doubt(&mut self, now: Micros) {
        let believed = self.doubt.end(now);
        if believed < 1.0 {
            self.skill.fade(believed);
            self.calibration.fade(believed);
            self.waste.fade(believed);
        }
    }
}

/// Was the deadline met?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Met {
    Yes,
    No,
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Micros = 1_000_000;

    /// Scenario: 100 tokens leave every 100 ms, the queue runs empty for a minute, goes on as before, then stalls.
    /// Guarantees: nothing is known before there is evidence; the rate is that of the time in which something waits; a stall
    /// lowers it with every look.
    #[test]
    fn a_drain_is_learnt_while_something_waits() {
        let mut meter = DrainMeter::default();
        meter.began(0);
        for tick in 1..=40 {
            assert_eq!(meter.tokens_per_second(tick * 100_000).is_some(), tick > GRANTS_MIN as i64);
            meter.granted(tick * 100_000, 100);
        }
        meter.emptied();
        meter.began(64_000_000);
        for tick in 1..=40 {
            meter.granted(64_000_000 + tick * 100_000, 100);
        }
        let rate = |at| meter.tokens_per_second(at).unwrap();
        assert!((rate(68_000_000) - 1000.0).abs() < 1.0, "{}", rate(68_000_000));
        assert!(rate(70_000_000) < 900.0 && rate(90_000_000) < rate(80_000_000));
    }

    /// Scenario: requests take twice as long as predicted, with a spread; one outlier.
    /// Guarantees: bias and spread are learnt, in logarithms; before, there is the prior and no bias.
    #[test]
    fn skill_is_bias_and_spread() {
        let (mut meter, mut now) = (SkillMeter::default(), 0);
        let mut learn = |meter: &mut SkillMeter, actual: f64| {
            now += SECOND;
            meter.learn_whole(now, 100, (1.0, actual));
        };
        assert_eq!(meter.skill(100), Skill::default());
        for number in 0..400 {
            let actual = if number % 2 == 0 { 1.8 } else { 2.2 };
            learn(&mut meter, actual);
        }
        let skill = meter.skill(100);
        assert!((skill.whole.mean - 2.0f64.ln()).abs() < 0.02, "{skill:?}");
        assert!((skill.whole.variance.sqrt() - 0.1).abs() < 0.01, "{skill:?}");
        assert_eq!(skill.first, Ratio::default());
        learn(&mut meter, 1e9);
        assert!(meter.skill(100).whole.variance < 0.3, "one outcome counts {RATIO_MAX} times off at most");
    }

    /// Scenario: requests that take what was predicted; then a dozen thirteen times as long, as when a machine stood still, at once or one after
    /// the other; then all ten times as long.
    /// Guarantees: after the dozen, four times what is predicted is still as good as certain to be enough, and twice if they were late at
    /// once; a world that has changed is learnt.
    #[test]
    fn a_machine_that_stood_still_says_little_of_what_comes() {
        for (gap, enough) in [(0, 2.0f64), (SECOND, 4.0)] {
            let (mut meter, mut now) = (SkillMeter::default(), 0);
            let mut learn = |times: usize, factor: f64, gap: Micros| {
                for number in 0..times {
                    now += gap;
                    meter.learn_whole(now, 100, (1.0, factor * if number % 2 == 0 { 0.9 } else { 1.1 }));
                }
                meter.skill(100).whole
            };
            learn(200, 1.0, SECOND);
            let stalled = learn(12, 13.0, gap);
            let spare = (enough.ln() - stalled.mean) / stalled.variance.sqrt();
            assert!(spare > 2.0, "{stalled:?}");
            let changed = learn(300, 10.0, SECOND);
            assert!((changed.mean - 10.0f64.ln()).abs() < 0.1, "{changed:?}");
        }
    }

    /// Scenario: short prompts take three times as long as predicted, long ones exactly as long; a class nobody was of.
    /// Guarantees: each class has its own bias; the unknown one has that of all; classes begin at 64, 256, 1024 and 4096.
    #[test]
    fn skill_is_learnt_by_length() {
        let mut meter = SkillMeter::default();
        for second in 1..=200 {
            meter.learn_whole(second * SECOND, 20, (1.0, 3.0));
            meter.learn_whole(second * SECOND + SECOND / 2, 2000, (1.0, 1.0));
        }
        let bias = |prompt_tokens| meter.skill(prompt_tokens).whole.mean;
        assert!((bias(63) - 3.0f64.ln()).abs() < 0.01 && bias(1024).abs() < 0.01, "{meter:?}");
        let all = meter.overall().whole.mean;
        assert!(all > 0.4 && all < 0.7 && bias(64) == all && bias(4096) == all, "{all}");
        assert_eq!(
            [0, 63, 64, 255, 256, 1023, 1024, 4095, 4096, u32::MAX].map(size_of),
            [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
        );
    }

    /// Scenario: a request is refused while all engines have something to do, another beside an idle one; a third starts ten seconds later.
    /// Guarantees: the first alone has a price; from the second on predictions are less sure, and certain again once the third has started,
    /// but then less than before is known.
    #[test]
    fn who_is_refused_beside_an_idle_engine_raises_doubt() {
        let mut learnt = Learnt::default();
        (1..=50).for_each(|second| learnt.skill.learn_whole(second * SECOND, 100, (1.0, 2.0)));
        let at = 51 * SECOND;
        learnt.refused((at, Tier::High), Some(1.0), Engines::Busy);
        let sure = learnt.skill(at + SECOND, 100).whole;
        learnt.refused((at, Tier::High), Some(1.0), Engines::Idle);
        assert!(learnt.turned_away.lately(at).lately.len() == 1 && sure.variance < 1e-9, "{sure:?}");
        let later = at + 10 * SECOND;
        let doubted = learnt.skill(later, 100).whole;
        assert!(doubted.variance > 0.5 && doubted.mean == sure.mean, "{doubted:?}");
        let venture = Venture::new(later, 1.0, 0.5).unwrap();
        learnt.started(&venture);
        let again = learnt.skill(later, 100).whole;
        assert!((again.mean - sure.mean).abs() < 1e-9 && again.variance < 1e-9, "{again:?}");
        learnt.skill.learn_whole(later + SECOND, 100, (1.0, 1.0));
        let (mean, before) = (learnt.skill(later + SECOND, 100).whole.mean, sure.mean);
        assert!(mean < 0.9 * before, "one outcome of few says much: {mean}, {before} before");
    }

    /// Scenario: chances of 0, 0.95 and 1, of two tiers.
    /// Guarantees: each is in its bin, 1 in the last, and empty bins are not told.
    #[test]
    fn reliability_has_bins() {
        let mut curve = Reliability::default();
        curve.learn(Tier::High, 1.0, Met::Yes);
        curve.learn(Tier::High, 0.95, Met::No);
        curve.learn(Tier::Low, 0.0, Met::No);
        let bins: Vec<_> = curve.bins().map(|(tier, place, bin)| (tier, place, bin.requests, bin.met)).collect();
        assert_eq!(bins, [(Tier::High, 9, 2, 1), (Tier::Low, 0, 1, 0)]);
    }
}
