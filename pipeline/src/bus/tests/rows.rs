//! Row structs and schemas are held together here.

use queries::{LiveTables, Topic};

use super::super::{intake::Intake, rows_of};
use crate::rows::*;

/// Rows go through an intake, into the live tables and back. Twin: `serde_arrow` makes the same columns of them.
fn there_and_back<R: Row + Clone + PartialEq + std::fmt::Debug>(rows: Vec<R>) -> Topic {
    let intake = Intake::new(1024, 1024);
    let twin = serde_arrow::to_record_batch(R::TOPIC.schema().fields(), &rows).unwrap();
    // Columns are used again after the batch but one.
    for _ in 0..3 {
        rows.iter().for_each(|row| intake.try_put(row).unwrap());
        let (count, batch) = intake.take(R::TOPIC).unwrap();
        let batch = batch.unwrap();
        assert_eq!((count, batch.schema()), (rows.len(), R::TOPIC.schema()));
        assert_eq!(batch.columns(), twin.columns());
        assert_eq!(rows_of::<R>(&batch).unwrap(), rows);
        LiveTables::new(10).append(R::TOPIC, batch).unwrap();
    }
    assert!(intake.take(R::TOPIC).is_none());
    // What a row is said to take is what Arrow holds for it, but for what says which values are null.
    let many = serde_arrow::to_record_batch(R::TOPIC.schema().fields(), &[&rows[..]; 1000].concat()).unwrap();
    let held: usize = many.columns().iter().map(|column| column.to_data().get_slice_memory_size().unwrap()).sum();
    let (said, nulls) = (1000 * rows.iter().map(R::bytes).sum::<usize>(), held / 8 + 4096);
    assert!(said.abs_diff(held) <= nulls, "{}: said {said}, holds {held}", R::TOPIC.name());
    R::TOPIC
}

pub(crate) fn candidate(instance: u32) -> CandidateRow {
    CandidateRow {
        instance,
        hit_tokens: 16,
        queue_seconds: 0.25,
        prefill_seconds: 0.5,
        interference_seconds: 0.125,
        total_seconds: 0.875,
        fetch_tokens: 8,
        fetch_seconds: 0.0625,
        queue_error_seconds: 0.5,
        prefill_error_seconds: 0.25,
        fetch_error_seconds: 0.125,
        interference_error_seconds: 0.0625,
        error_seconds: 0.75,
        compared_seconds: 1.25,
        has_room: (instance > 0).then_some(true),
    }
}

pub(crate) fn decision(candidates: Vec<CandidateRow>) -> DecisionRow {
    DecisionRow {
        at: super::NOW,
        decision_id: "d1".into(),
        request_id: "r1".into(),
        model: "smol".into(),
        tenant: "acme".into(),
        tier: "High".into(),
        tier_reason: "short".into(),
        outcome: "admit".into(),
        reason: "least_seconds".into(),
        throttle_step: "none".into(),
        route_policy: "least_seconds".into(),
        instance: Some(1),
        prompt_tokens: 100,
        max_tokens: 64,
        predicted_hit_tokens: 16,
        predicted_seconds: Some(0.875),
        turns: 2,
        view_mode: "exact".into(),
        view_as_of: Some(super::NOW - 1),
        saturation: None,
        candidates,
        variant: Some("int8".into()),
        visible_hit_tokens: Some(12),
        first_token_due: Some(super::NOW),
        whole_due: None,
        predicted_wait_seconds: Some(0.5),
        predicted_first_token_seconds: Some(1.0),
        predicted_whole_seconds: None,
        meet_probability: Some(0.25),
        is_trial: Some(true),
        bucket_fits: Some(vec![BucketFitRow {
            instance: 1,
            fit: "borrows".into(),
            work_tokens: 148,
            bucket_seconds: 0.5,
        }]),
    }
}

pub(crate) fn shadow(decision_id: &str) -> ShadowDecisionRow {
    ShadowDecisionRow {
        at: super::NOW,
        shadow: "even".into(),
        decision_id: decision_id.into(),
        request_id: "r1".into(),
        tenant: "acme".into(),
        acting_tier: "High".into(),
        shadow_tier: "Low".into(),
        acting_outcome: "admit".into(),
        shadow_outcome: "queue".into(),
        acting_reason: "least_seconds".into(),
        shadow_reason: "round_robin".into(),
        acting_throttle_step: "open".into(),
        shadow_throttle_step: "shrink".into(),
        acting_instance: Some(1),
        shadow_instance: None,
        acting_seconds: Some(0.5),
        shadow_seconds: Some(0.75),
        seconds_difference: Some(0.25),
        hit_tokens_difference: Some(-16),
        is_changed: true,
    }
}

/// With everything in it, and an instance that has not reported.
fn policy_input() -> PolicyInputRow {
    let silent = InstanceInputRow {
        instance: 1,
        epoch: u64::MAX,
        model: "smol".into(),
        variant: "q8".into(),
        is_ready: true,
        leased_tokens: 1,
        leased_requests: 2,
        reported_at: None,
        running: None,
        waiting: None,
        queued_prefill_tokens: None,
        context_tokens: None,
        blocks_used: None,
        blocks_total: None,
        prefill_tokens_per_second: None,
        decode_step_seconds: None,
        prefill_error: None,
        decode_error: None,
        l2_fetch_seconds_per_token: None,
        l25_fetch_seconds_per_token: None,
        l3_fetch_seconds_per_token: None,
    };
    let told = InstanceInputRow {
        is_ready: false,
        reported_at: Some(super::NOW),
        running: Some(1),
        waiting: Some(2),
        queued_prefill_tokens: Some(3),
        context_tokens: Some(4),
        blocks_used: Some(5),
        blocks_total: Some(6),
        prefill_tokens_per_second: Some(0.1 + 0.2),
        decode_step_seconds: Some(f64::MIN_POSITIVE),
        prefill_error: Some(0.1),
        decode_error: Some(0.2),
        l2_fetch_seconds_per_token: Some(1e-6),
        l25_fetch_seconds_per_token: Some(1e-5),
        l3_fetch_seconds_per_token: Some(1e-4),
        ..silent.clone()
    };
    PolicyInputRow {
        at: super::NOW,
        reading: "arrival".into(),
        decision_id: "d1".into(),
        request_id: "r1".into(),
        settings: "ab".into(),
        view_mode: "exact".into(),
        view_as_of: Some(super::NOW),
        instances: vec![silent, told],
        least_loaded: vec![1, 0],
        hits: vec![HitRow { instance: 1, tokens: 16, l2_tokens: 4, l25_tokens: 3, l3_tokens: 2 }],
        hits_as_of: Some(super::NOW),
        block_hashes: vec![vec![], vec![u64::MAX, 1]],
        tenant: Some("acme".into()),
        tenant_class: Some("High".into()),
        variants: vec!["q8".into(), "q4".into()],
        tier: Some("Low".into()),
        prompt_tokens: 1,
        max_tokens: 2,
        turns: Some(3),
        tie_turn: Some(u64::MAX),
        excluded: vec![7, 8],
        throttle_step: Some("open".into()),
        throttle_since_us: Some(i64::MIN),
        queued_requests: Some(4),
        queued_tokens: Some(5),
        pushed_requests: Some(6),
        pushed_tokens: Some(7),
        queued_bytes: Some(8),
        pushed_bytes: Some(9),
        request_bytes: Some(10),
        arrived_at: Some(super::NOW),
        slo_first_token_us: Some(1),
        slo_whole_us: None,
        slo_per_token_us: Some(2),
        tier_asked: None,
        tier_asked_max: Some("Low".into()),
        sequences: Some(2),
        forecast_as_of: Some(super::NOW),
        output_lengths: Some(vec![vec![1, 2], Vec::new()]),
        services: Some(vec![ServiceInputRow {
            variant: "int8".into(),
            chunk_tokens: 512,
            prefill: Some(vec![0.5, 0.25]),
            decode: None,
        }]),
        drain_tokens_per_second: None,
        skill: Some(vec![0.5]),
        queue_steps: Some(vec![QueueStepRow { tier: 2, start_by_us: -1, tokens: 3, requests: 4 }]),
        lease: Some("reserved".into()),
        because: Some("waited".into()),
        model: Some("smol".into()),
        spared: Some(vec![2]),
        missed_share: Some(0.25),
        request_seconds: Some(0.125),
        refused_since: Some(super::NOW),
        chance_offset: Some(0.5),
        chance_slope: Some(0.75),
        refused_lately: Some(vec![RejectRow { at_us: -5, tier: 2, engine_seconds: 0.1 + 0.2 }]),
        cached_blocks: Some(vec![CachedRow { instance: 1, blocks: u64::MAX }]),
        prompts_due: Some(vec![PromptDueRow { instance: 1, due_us: -7, tokens: 12 }]),
        bucket_seats: Some(vec![SeatRow {
            instance: 1,
            plan: 3,
            from_tokens: 500,
            to_tokens: None,
            foreign_tokens: 9,
        }]),
    }
}

fn request(error: Option<String>) -> RequestRow {
    RequestRow {
        at: super::NOW,
        request_id: "r1".into(),
        seq: 1,
        event: "failed".into(),
        model: "smol".into(),
        tier: "Low".into(),
        tenant: "ünïcode \"quoted\"".into(),
        instance: None,
        prompt_tokens: u32::MAX,
        output_tokens: 0,
        cached_tokens: Some(0),
        gap_us: None,
        total_us: Some(i64::MAX),
        finish_reason: None,
        error,
        variant: None,
        block_tokens: Some(16),
        prompt_blocks: Some(vec![vec![1, u64::MAX], vec![]]),
        session_hash: Some(u64::MAX),
        turns: Some(3),
        tenant_class: None,
        expected_hit_tokens: Some(48),
    }
}

/// Scenario: rows of every topic, with every optional field both there and absent, go into columns and back.
/// Guarantees: each struct fits its topic's schema exactly and loses nothing; no topic is forgotten.
#[test]
fn every_row_fits_its_schema() {
    let step = EngineStepRow {
        at: super::NOW,
        instance: 1,
        epoch: u64::MAX,
        step: 7,
        step_us: 1500,
        prefill_tokens: 1,
        decode_tokens: 2,
        running: 3,
        waiting: 4,
        preempted: 5,
        cached_tokens: 6,
        scheduled_prompt_tokens: 7,
        queued_prefill_tokens: 8,
        context_tokens: 9,
        blocks_used: 10,
        blocks_cached: 11,
        blocks_total: 12,
        ..EngineStepRow::default()
    };
    let stored = KvEventRow {
        at: super::NOW,
        instance: 1,
        epoch: 2,
        seq: 3,
        event: "stored".into(),
        block_hash: Some(u64::MAX),
        parent_hash: None,
        level: Some("L1".into()),
        tokens: Some(16),
        bucket: None,
        blocks: None,
    };
    let sum = KvEventRow { bucket: Some(15), blocks: Some(0), ..stored.clone() };
    let cleared = KvEventRow { block_hash: None, level: None, tokens: None, parent_hash: Some(0), ..stored.clone() };
    let quiet = RequestDistributionRow {
        as_of: super::NOW,
        model: "smol".into(),
        tier: "Low".into(),
        window_seconds: 60.0,
        arrived: 1,
        finished: 0,
        prompt_tokens: 2,
        cached_tokens: 3,
        output_tokens: 4,
        prompt_p50: None,
        prompt_p95: None,
        prompt_p99: None,
        output_p50: None,
        output_p95: None,
        output_p99: None,
        ttft_ms_p50: None,
        ttft_ms_p95: None,
        ttft_ms_p99: None,
        itl_ms_p50: None,
        itl_ms_p95: None,
        itl_ms_p99: None,
        arrivals_per_second: Some(0.5),
        concurrent_tokens: None,
        concurrent_requests: Some(-1),
    };
    let busy = RequestDistributionRow { prompt_p50: Some(1.5), itl_ms_p99: Some(2.5), ..quiet.clone() };
    let load = InstanceLoadRow {
        as_of: super::NOW,
        instance: 1,
        epoch: 2,
        running: 3,
        waiting: 4,
        leased_tokens: 5,
        context_tokens: 6,
        queued_prefill_tokens: 7,
        cached_blocks: 8,
        blocks_used: 9,
        blocks_total: 10,
        prefill_tokens_per_second: Some(400.5),
        decode_step_seconds: None,
        tokens_per_second: Some(0.0),
    };
    let atom = AtomLoadRow {
        as_of: super::NOW,
        instance: 1,
        from_tokens: 500,
        to_tokens: 1000,
        tokens: -5,
        requests: i64::MIN,
    };
    let total = LoadTotalsRow { as_of: super::NOW, grouped_by: "region".into(), tokens: 5, ..LoadTotalsRow::default() };
    let of_bucket =
        LoadTotalsRow { model: Some("smol".into()), bucket: Some(2), uncached_tokens: Some(3), ..total.clone() };
    let whole = BucketRow { at: super::NOW, state: "small_fleet".into(), buckets: 1, ..BucketRow::default() };
    let bounded_bucket =
        BucketRow { to_tokens: Some(500), instances: vec![1, 2], imbalance: Some(1.5), ..whole.clone() };
    let sessions = SessionActivityRow { as_of: super::NOW, turns_p95: Some(3.0), ..SessionActivityRow::default() };
    let fault =
        FaultRow { at: super::NOW, component: "log".into(), kind: "x".into(), detail: String::new(), count: u64::MAX };
    let switched = SpeculationRow {
        at: super::NOW,
        instance: 1,
        epoch: 2,
        class: "L2".into(),
        state: "cool".into(),
        predicted_gain: 0.97,
        drawn: 900,
        proposed: 240,
        accepted: 110,
    };
    let settings = SettingsRow { at: super::NOW, id: "a".into(), program: "1".into(), text: "[policy]\n".into() };
    let epoch =
        EpochRow { at: super::NOW, flow_start: 1, epoch_us: 2, epoch: 3, kv_events_to: 4, ..EpochRow::default() };
    let bounded = MrcRow { capacity_blocks: Some(64), capacity_tokens: Some(1024), ..MrcRow::default() };
    let part = FunnelRow { layer: "present".into(), level: Some("L1".into()), tokens: 48, ..FunnelRow::default() };
    let lost = FunnelRow { reason: Some("phantom".into()), tokens: -16, instance: Some(3), ..part.clone() };
    let worst_requests = vec!["req-1".to_string(), "req-2".to_string()];
    let diagnosed =
        DiagnosisRow { queue_share: Some(0.5), worst_requests, worst_step: Some(9), ..DiagnosisRow::default() };
    let seen = [
        there_and_back(vec![request(None), request(Some("bad".into()))]),
        there_and_back(vec![decision(vec![]), decision(vec![candidate(0), candidate(1)])]),
        there_and_back(vec![shadow("d1")]),
        there_and_back(vec![step]),
        there_and_back(vec![stored, sum, cleared]),
        there_and_back(vec![super::row(1), InstanceRow { address: Some("a:1".into()), pid: None, ..super::row(2) }]),
        there_and_back(vec![atom]),
        there_and_back(vec![total, of_bucket]),
        there_and_back(vec![whole, bounded_bucket]),
        there_and_back(vec![quiet, busy]),
        there_and_back(vec![sessions]),
        there_and_back(vec![ServiceTimeRow { decode_base_seconds: Some(0.5), ..ServiceTimeRow::default() }]),
        there_and_back(vec![OutputLengthRow { tier: Some("Low".into()), ..OutputLengthRow::default() }]),
        there_and_back(vec![ArrivalTrendRow { forecast_high: 2.5, ..ArrivalTrendRow::default() }]),
        there_and_back(vec![PredictionErrorRow { predictor: "x".into(), bias: -1.0, ..PredictionErrorRow::default() }]),
        there_and_back(vec![load]),
        there_and_back(vec![MrcRow::default(), bounded]),
        there_and_back(vec![part, lost]),
        there_and_back(vec![FunnelWindowRow { reason: Some("evicted".into()), ..FunnelWindowRow::default() }]),
        there_and_back(vec![DiagnosisRow::default(), diagnosed]),
        there_and_back(vec![SloRow { is_met: Some(false), margin_seconds: Some(-0.5), ..SloRow::default() }]),
        there_and_back(vec![SloReliabilityRow { met_share: 0.5, ..SloReliabilityRow::default() }]),
        there_and_back(vec![
            CacheViewRow { drift_ratio: Some(0.5), ..CacheViewRow::default() },
            CacheViewRow::default(),
        ]),
        there_and_back(vec![RefusedRow { value: Some("-1".into()), ..RefusedRow::default() }, RefusedRow::default()]),
        there_and_back(vec![switched]),
        there_and_back(vec![fault]),
        there_and_back(vec![settings]),
        there_and_back(vec![PolicyInputRow { at: super::NOW, ..PolicyInputRow::default() }, policy_input()]),
        there_and_back(vec![epoch]),
        there_and_back(vec![ModeRow { is_degraded: true, ..ModeRow::default() }, ModeRow::default()]),
        there_and_back(vec![SnapshotRow { base: Some("1".into()), ..SnapshotRow::default() }, SnapshotRow::default()]),
    ];
    assert_eq!(seen, Topic::ALL);
}
