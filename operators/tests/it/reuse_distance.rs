//! X4: reuse distances and miss-ratio curves.
use operators::{
    CurveGroup, CurveRow, Forgetting, PromptRow, Refusal, Refused, ReuseDistance, ReuseDistanceConfig, ReuseDistances,
    reference::reuse_distance::SlowReuseDistance,
};
use proptest::prelude::*;
use timely::dataflow::operators::Probe;

use crate::harness::{Epochs, Schedule, Timed, by_epoch, collect, run, schedules};

const EVERYTHING: ReuseDistanceConfig = ReuseDistanceConfig {
    exact_blocks: 1000,
    sample_max: 1000,
    rate_most: 1.0,
    rate_least: 1.0,
    capacity_max: 160,
    forgetting: Forgetting::Never,
    emit_epochs: 1,
    max_groups: 100,
    max_models: 100,
    seed: 0,
};

/// Chains through a tree with few branches, which are prefix-consistent as hashed prompts are.
fn chains() -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(0..3u64, 0..7).prop_map(|turns| {
        let mut path = 1;
        let mut next = |turn: u64| {
            path = path * 4 + turn;
            path
        };
        turns.into_iter().map(&mut next).collect()
    })
}

/// Any lists, blocks twice in one among them.
fn lists() -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(0..12u64, 0..9)
}

/// Requests of two models, two tiers and three tenants, few moments and ids, so that some tie; a few malformed.
fn rows(hashes: impl Strategy<Value = Vec<u64>>) -> impl Strategy<Value = PromptRow> {
    let names = (0..2u32, 0..2u8, 0..3u32);
    let block = prop_oneof![12 => Just(16u32), 1 => Just(5), 1 => Just(0)];
    (0..4i64, 0..6u64, names, hashes, (block, -20..40i64)).prop_map(
        |(at_us, request, (model, tier, tenant), hashes, (block_tokens, more))| {
            let prompt_tokens = (hashes.len() as i64 * 16 + more).max(0) as u32;
            PromptRow { at_us, request, model, tier, tenant, prompt_tokens, block_tokens, hashes }
        },
    )
}

fn forgetting() -> impl Strategy<Value = Forgetting> {
    let windows = (1..5u64, 1..4u64).prop_map(|(epochs, count)| Forgetting::Windows { epochs, count });
    prop_oneof![1 => Just(Forgetting::Never), 2 => windows]
}

fn operate(
    workers: usize,
    schedule: &Schedule<PromptRow>,
    config: ReuseDistanceConfig,
) -> (Epochs<CurveRow>, Epochs<Refused>) {
    let (rows, refused): (Timed<_>, Timed<_>) = Default::default();
    let (to_rows, to_refused) = (rows.clone(), refused.clone());
    run(workers, schedule, move |prompts, probe| {
        let reuse = prompts.reuse_distance(config);
        collect(reuse.curves.probe_with(probe), &to_rows, |row: &CurveRow| (row.epoch, row.clone()));
        collect(reuse.refused, &to_refused, |refused: &Refused| (refused.epoch, *refused));
    });
    (by_epoch(&rows), by_epoch(&refused))
}

/// The operator's epochs against the twin's; `same` says how a row is compared.
fn compare(
    schedule: &Schedule<PromptRow>,
    config: ReuseDistanceConfig,
    same: impl Fn(CurveRow, CurveRow) -> Result<(), TestCaseError>,
) -> Result<(), TestCaseError> {
    let end = *schedule.keys().last().unwrap();
    for workers in [1, 2, 4] {
        let (mut got, refused) = operate(workers, schedule, config);
        let mut twin = SlowReuseDistance::new(config);
        for epoch in 0..end {
            let rows = schedule.get(&epoch).map_or(&[][..], Vec::as_slice);
            let expected = twin.epoch(epoch, rows);
            let got = got.remove(&epoch).unwrap_or_default();
            let groups = |rows: &[CurveRow]| rows.iter().map(|row| row.group).collect::<Vec<_>>();
            prop_assert_eq!(groups(&got), groups(&expected), "epoch {} on {} workers", epoch, workers);
            got.into_iter().zip(expected).try_for_each(|(got, expected)| same(got, expected))?;
            let malformed = rows.iter().filter(|row| row.check().is_err()).count();
            prop_assert_eq!(refused.get(&epoch).map_or(0, Vec::len), malformed);
        }
        prop_assert!(got.is_empty(), "rows after the last: {:?}", got);
    }
    Ok(())
}

/// One epoch without rows after all windows have passed.
fn with_end(mut schedule: Schedule<PromptRow>, config: &ReuseDistanceConfig) -> Schedule<PromptRow> {
    let mut end = schedule.keys().last().unwrap() + config.emit_epochs;
    if let Forgetting::Windows { epochs, count } = config.forgetting {
        end += (count + 2) * epochs;
    }
    schedule.insert(end + 1, Vec::new());
    schedule
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Scenario: random requests, prefix-consistent or not, some twice at one moment, some malformed, of up to eight groups,
    /// with skipped epochs; with and without windows; emitted each epoch or more rarely; on one, two and four workers.
    /// Guarantees: after every epoch, and until every group is forgotten, each curve equals the LRU caches of its models
    /// simulated at each capacity and without a bound, to the token; malformed rows are refused.
    #[test]
    fn exact_curves_equal_the_simulated_caches(
        schedule in prop_oneof![schedules(rows(chains()), 10, 12), schedules(rows(lists()), 10, 12)],
        forgetting in forgetting(), emit_epochs in 1..4u64,
    ) {
        let config = ReuseDistanceConfig { forgetting, emit_epochs, ..EVERYTHING };
        compare(&with_end(schedule, &config), config, |got, expected| {
            prop_assert_eq!(got, expected);
            Ok(())
        })?;
    }

    /// Scenario: the same where only eight blocks are followed exactly and the others all, or at most six, in the sample.
    /// Guarantees: after every epoch each curve equals the simulated caches up to eight blocks, to the token and without
    /// an error, and never falls; where all others are followed, the rest is right but for the count of first uses.
    #[test]
    fn sampled_curves_are_exact_up_to_the_bound(
        schedule in schedules(rows(chains()), 10, 12), forgetting in forgetting(), all in prop::bool::ANY,
    ) {
        let sample_max = if all { 1000 } else { 6 };
        let config = ReuseDistanceConfig { exact_blocks: 8, sample_max, rate_least: 0.3, forgetting, ..EVERYTHING };
        compare(&with_end(schedule, &config), config, |got, expected| {
            let head = got.points.len().min(8);
            prop_assert_eq!(&got.points[..head], &expected.points[..head]);
            let plain = |row: &CurveRow| (row.group, row.from_epoch, row.requests, row.prompt_tokens, row.block_tokens);
            prop_assert_eq!(plain(&got), plain(&expected));
            prop_assert!(got.points.is_sorted_by_key(|point| point.hit_tokens));
            prop_assert!(got.points.iter().all(|point| point.hit_tokens <= got.infinite.hit_tokens));
            if all {
                prop_assert_eq!(got.blocks, expected.blocks);
                // The registers may take a few of these few hundred blocks for one another.
                let near = |a: u64, b: u64| a.abs_diff(b) <= 2 * 3 * 16 + expected.prompt_tokens / 50;
                prop_assert!(near(got.infinite.hit_tokens, expected.infinite.hit_tokens));
                for (got, expected) in got.points.iter().zip(&expected.points) {
                    prop_assert!(near(got.hit_tokens, expected.hit_tokens), "{:?} for {:?}", got, expected);
                }
            }
            Ok(())
        })?;
    }
}

fn prompt(at_us: i64, tenant: u32, hashes: Vec<u64>) -> PromptRow {
    let prompt_tokens = 16 * hashes.len() as u32;
    PromptRow { at_us, request: at_us as u64, model: 0, tier: 0, tenant, prompt_tokens, block_tokens: 16, hashes }
}

/// Scenario: four tenants, room for three groups beside the model (one tier and two tenants).
/// Guarantees: each tenant without room is reported once an epoch with its rows, and counts in all other curves.
#[test]
fn a_group_too_many_counts_only_in_the_whole() {
    let config = ReuseDistanceConfig { max_groups: 3, ..EVERYTHING };
    let rows = (0..8).map(|n| prompt(n, n as u32 % 4, vec![1, 2])).collect();
    let (curves, refused) = operate(1, &Schedule::from([(3, rows)]), config);
    let told: Vec<_> = curves[&3].iter().map(|row| (row.group, row.requests, row.infinite.hit_tokens)).collect();
    let (all, two) = (7 * 32, 2 * 32);
    let expected = vec![
        (CurveGroup::All, 8, all),
        (CurveGroup::Tier(0), 8, all),
        (CurveGroup::Model(0), 8, all),
        (CurveGroup::Tenant(0), 2, two - 32),
        (CurveGroup::Tenant(1), 2, two),
    ];
    assert_eq!(told, expected);
    let told: Vec<_> = refused[&3].iter().map(|refused| (refused.subject, refused.rows, refused.reason)).collect();
    let full = Refusal::GroupsFull { max_groups: 3 };
    assert_eq!(told, vec![(3 << 32 | 2, 2, full), (3 << 32 | 3, 2, full)]);
}

/// Scenario: two models with the same prompts, and a third when there is room for two.
/// Guarantees: a model's cache knows nothing of the other's, and the curve of all is the sum of theirs at each capacity, whatever
/// workers they are on; the third model's prompts are refused, once an epoch with their number, and count nowhere.
#[test]
fn models_have_caches_of_their_own() {
    let of_model = |model, at_us| PromptRow { model, ..prompt(at_us, 0, vec![1, 2, 3]) };
    let rows = (0..9).map(|n| of_model(n as u32 % 3, n)).collect();
    let (curves, refused) =
        operate(1, &Schedule::from([(3, rows)]), ReuseDistanceConfig { max_models: 2, ..EVERYTHING });
    let told = |group: CurveGroup| {
        let curve = curves[&3].iter().find(|row| row.group == group).unwrap();
        (curve.requests, curve.points.iter().map(|point| point.hit_tokens).collect::<Vec<_>>())
    };
    let (one, two) = (vec![32, 64, 96, 96, 96, 96], vec![64, 128, 192, 192, 192, 192]);
    assert_eq!(told(CurveGroup::Model(0)), (3, one.clone()));
    assert_eq!(told(CurveGroup::Model(1)), (3, one));
    assert_eq!(told(CurveGroup::All), (6, two.clone()));
    assert_eq!(told(CurveGroup::Tenant(0)), (6, two));
    let told: Vec<_> = refused[&3].iter().map(|refused| (refused.subject, refused.rows, refused.reason)).collect();
    assert_eq!(told, vec![(2 << 32 | 2, 3, Refusal::KeysFull { max_keys: 2 })]);
}

/// xorshift64.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// Conversations that go on now and then, all with one system prompt, as chains of blocks.
fn conversations(requests: usize) -> Vec<PromptRow> {
    let (mut random, mut open, mut next) = (Random(88_172_645_463_325_252), Vec::<Vec<u64>>::new(), 10_u64);
    (0..requests)
        .map(|n| {
            let place =
                if n < 50 || random.below(3) == 0 { open.len() } else { random.below(open.len() as u64) as usize };
            if place == open.len() {
                open.push(vec![1, 2]);
            }
            for _ in 0..1 + random.below(20) {
                next += 1;
                open[place].push(next);
            }
            let hashes = open[place].clone();
            if hashes.len() > 120 {
                open.swap_remove(place);
            }
            prompt(n as i64, 0, hashes)
        })
        .collect()
}

/// Scenario: 6,000 requests over 40,000 blocks; 1,000 blocks exact, the others by a sample of at most 600, 2,000 or 8,000,
/// or at a fixed rate, each with eight choices of the sample.
/// Guarantees: the state stays within its bounds; no capacity is further off than four of the errors stated with it; and
/// those are no further off than they say on the whole: their mean square is below four.
#[test]
fn sampled_curves_are_within_the_stated_error() {
    let rows = conversations(6000);
    let exact = fed(&rows, ReuseDistanceConfig { exact_blocks: 1_000_000, capacity_max: 1_000_000, ..EVERYTHING });
    assert_eq!(exact.exact_blocks, u64::MAX);
    let (mut squares, mut count) = (0.0, 0.0);
    for (sample_max, rate_most, seed) in
        [(600, 1.0), (2000, 1.0), (8000, 1.0), (100_000, 0.02)].iter().flat_map(|(s, r)| (1..9).map(|n| (*s, *r, n)))
    {
        let config = ReuseDistanceConfig {
            exact_blocks: 1000,
            sample_max,
            rate_most,
            rate_least: 0.000_1,
            capacity_max: 1_000_000,
            seed,
            ..EVERYTHING
        };
        let got = fed(&rows, config);
        let held = (got.blocks - 1000) * u64::from(got.sampling_ppm) / 1_000_000;
        assert!(held <= sample_max as u64 && (sample_max >= 8000 || got.sampling_ppm < 100_000), "{held} held");
        for (point, exact) in got.points.iter().zip(&exact.points).chain([(&got.infinite, &exact.infinite)]) {
            let off = point.hit_tokens as f64 - exact.hit_tokens as f64;
            if point.capacity_blocks <= 1000 {
                assert_eq!((point.hit_tokens, point.error_tokens), (exact.hit_tokens, 0));
                continue;
            }
            let errors = off / (point.error_tokens as f64).max(16.0);
            assert!(errors.abs() < 4.0, "sample_max {sample_max}, seed {seed}: {point:?} for {exact:?}");
            (squares, count) = (squares + errors * errors, count + 1.0);
        }
    }
    println!("mean square of (estimate - exact) / error: {:.2} over {count} points", squares / count);
    assert!(squares / count < 4.0 && count > 500.0);
}

fn fed(rows: &[PromptRow], config: ReuseDistanceConfig) -> CurveRow {
    let mut curves = ReuseDistances::new(config);
    rows.iter().for_each(|row| curves.take(row).unwrap());
    curves.curve(CurveGroup::All).unwrap()
}

/// Scenario: ten thousand requests of new blocks only, more than a sample at its least rate may hold.
/// Guarantees: rate and sample stop at their bounds, and nothing is found to be reused.
#[test]
fn new_blocks_for_ever_stay_within_the_bounds() {
    let config = ReuseDistanceConfig {
        exact_blocks: 100,
        sample_max: 64,
        rate_least: 0.125,
        capacity_max: 1_000_000,
        ..EVERYTHING
    };
    let rows: Vec<_> =
        (0..10_000).map(|n| prompt(n, 0, (0..10).map(|block| n as u64 * 10 + block).collect())).collect();
    let got = fed(&rows, config);
    assert_eq!((got.sampling_ppm, got.blocks), (125_000, 100 + 64 * 8));
    assert!(got.points.iter().all(|point| point.hit_tokens <= got.infinite.hit_tokens));
    let share = got.infinite.hit_tokens as f64 / got.prompt_tokens as f64;
    assert!(share < 0.02, "{share} of new blocks taken for old ones");
}
