//! Readings as rows and back.

use super::*;

fn view() -> ClusterView {
    let engine = EngineView {
        reported_at: 77,
        running: 1,
        waiting: 2,
        queued_prefill_tokens: 3,
        context_tokens: 4,
        blocks_used: 5,
        blocks_total: 6,
        prefill_tokens_per_second: Some(0.1 + 0.2),
        decode_step_seconds: None,
        prefill_error: Some(0.25),
        decode_error: None,
    };
    let instance = |id: u32, engine| InstanceView {
        instance: InstanceId(id),
        epoch: ProcessEpoch(9),
        model: "tiny".into(),
        variant: "q8".into(),
        is_ready: id == 0,
        leased_tokens: u64::MAX,
        leased_requests: 7,
        fetch: FetchTimes([None, Some(1e-6), None, Some(0.1 + 0.2)]),
        bucket: (id == 0).then_some(BucketSeat { plan: 4, from_tokens: 500, to_tokens: Some(1500), foreign_tokens: 6 }),
        prompts: (id == 0).then_some(PromptDue { due: 7, tokens: 40 }).into_iter().collect(),
        cached_blocks: (id == 0).then_some(u64::MAX),
        engine,
    };
    ClusterView {
        mode: ViewMode::Degraded,
        as_of: Some(100),
        instances: vec![instance(0, Some(engine)), instance(1, None)],
        least_loaded: vec![InstanceId(1), InstanceId(0)],
    }
}

fn prefixes() -> PrefixReading {
    let hit = |id, tokens| PrefixHit { instance: InstanceId(id), tokens: LevelTokens(tokens) };
    let hits = PrefixHits::new(vec![hit(0, [16, 4, 8, 4]), hit(5, [0, 16, 0, 0])]);
    PrefixReading { hits, as_of: Some(200), blocks: vec![2, 0] }
}

fn forecast() -> ForecastReading {
    let prefill =
        LinearFit { samples: 0, coefficients: [0.1, -0.2, 1e-300, 0.1 + 0.2], covariance: [[0.0; 4]; 4], noise: 1e-9 };
    let time = ServiceTime { prefill: Some(prefill), decode: None, chunk_tokens: 512 };
    let step = QueueStep { start_by: i64::MAX, tokens: u64::MAX, requests: 7 };
    let ratio = |mean| Ratio { mean, variance: 0.3 };
    let forecast = Forecast {
        lengths: [vec![1, 2], Vec::new(), vec![u32::MAX]],
        services: vec![("q8".into(), time)],
        drain_tokens_per_second: Some(1.0 / 3.0),
        skill: Skill { first: ratio(0.1), whole: ratio(-0.2) },
        calibration: Calibration { offset: 0.1 + 0.2, slope: 1.0 / 3.0 },
        queue: QueueProfile { tiers: [Vec::new(), vec![step], vec![QueueStep { start_by: -1, ..step }, step]] },
        missed_share: 1.0 / 7.0,
        mean_seconds: Some(1.0 / 9.0),
        turned_away: Rejects {
            since: Some(-8),
            lately: vec![Refused { at: -7, tier: Tier::Low, engine_seconds: 0.1 + 0.2 }],
        },
    };
    ForecastReading { forecast, as_of: Some(300) }
}

/// Scenario: an arrival, a placement and a wait with everything in them become rows and come back.
/// Guarantees: policies get the same inputs to the last bit; of the hashes, those up to the first miss are kept (SPEC X2).
#[test]
fn there_and_back() {
    let hashes = Arc::new(vec![vec![1, 2, 3, 4], vec![5, 6]]);
    let kept = Arc::new(vec![vec![1, 2, 3], vec![5]]);
    let arrival = ArrivalReading {
        now: 1,
        view: Arc::new(view()),
        throttle: ThrottleState { step: ThrottleStep::Shrink, since: i64::MIN / 2 },
        prefixes: prefixes(),
        hashes: hashes.clone(),
        prompt_tokens: 64,
        max_tokens: 10,
        turns: 3,
        tenant: "acme".into(),
        tenant_class: Tier::Medium,
        turn: 8,
        queue: QueueLoad { requests: 2, tokens: 99, bytes: 1001 },
        bytes: 77,
        arrived: Some(-4),
        asked: Asked {
            slo: SloAsk { first_token_us: Some(5), whole_us: None, per_token_us: Some(i64::MAX) },
            tier: Some(Tier::Low),
            tier_max: Some(Tier::High),
        },
        sequences: 3,
        forecast: forecast(),
        lot: lot_of(""),
    };
    let row = arrival.row();
    assert_eq!(ArrivalReading::from_row(&row), Some(ArrivalReading { hashes: kept.clone(), ..arrival }));
    assert_eq!(PlaceReading::from_row(&row), None);
    let place = PlaceReading {
        now: 2,
        view: view().into(),
        prefixes: prefixes(),
        hashes,
        variants: vec!["q8".to_string(), "q4".to_string()].into(),
        tier: Tier::Low,
        prompt_tokens: 64,
        max_tokens: 10,
        turn: 8,
        excluded: vec![InstanceId(3)],
        spared: vec![InstanceId(5)],
    };
    let row = place.row(LeaseFate::Lost, "waited");
    assert_eq!((row.lease.as_deref(), row.because.as_deref()), (Some("lost"), Some("waited")));
    assert_eq!(PlaceReading::from_row(&row), Some(PlaceReading { hashes: kept.clone(), ..place }));
    assert_eq!(ArrivalReading::from_row(&row), None);
    let wait = WaitReading {
        place: PlaceReading { hashes: kept, ..PlaceReading::from_row(&row).unwrap() },
        tenant: "acme".into(),
        tenant_class: Tier::High,
        since: Some(-9),
        sequences: 2,
        forecast: forecast(),
    };
    assert_eq!(WaitReading::from_row(&wait.row()), Some(wait.clone()));
    assert_eq!((ArrivalReading::from_row(&wait.row()), WaitReading::from_row(&row)), (None, None));
}

/// Scenario: a prompt whose cached prefix has more blocks than a row may hold.
/// Guarantees: the row stays bounded, keeps the hits, and does not claim that they can be derived again.
#[test]
fn hashes_are_bounded() {
    let long = vec![(0..HASHES_MAX as u64 + 10).collect::<Vec<_>>()];
    let prefixes = PrefixReading { blocks: vec![HASHES_MAX + 1], ..prefixes() };
    let row = looked("placement", (1, &view()), &prefixes, &long);
    assert_eq!((row.block_hashes.len(), row.hits_as_of, row.hits.len()), (0, None, 2));
}
