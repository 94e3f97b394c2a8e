//! Ten simulated days through all operators, and the memory they hold at the end of each.
use operators::{
    ArrivalTrendConfig, ArrivedRow, AtomLoadConfig, DistributionConfig, FinishedRow, FlowConfig, FlowRows, KvChange,
    KvRow, LoadEvent, LoadRow, SessionConfig, StepRow, TrafficRow, views,
};

use crate::workload::Random;

/// Resident memory of this process.
fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.trim().trim_end_matches("kB").trim().parse().unwrap_or(0)
}

const DAY_S: u64 = 86_400;
const INSTANCES: u64 = 8;

/// Epochs of `epoch_s` simulated seconds; requests come and go at a rate that has a daily season, sessions and block
/// hashes are ever new ones. The ends that are remembered reach their bound in the first day: what still grows after that
/// has none.
pub fn ten_days(epoch_s: u64) -> String {
    let config = FlowConfig {
        load: AtomLoadConfig { max_closed: 1 << 13, ..AtomLoadConfig::default() },
        distribution: DistributionConfig {
            window_epochs: 10,
            epoch_us: epoch_s * 1_000_000,
            ..DistributionConfig::default()
        },
        sessions: SessionConfig { window_epochs: 10, ..SessionConfig::default() },
        arrival_trend: ArrivalTrendConfig {
            period_epochs: 1,
            season_periods: (DAY_S / epoch_s) as usize,
            ..ArrivalTrendConfig::default()
        },
        ..FlowConfig::default()
    };
    let per_day = DAY_S / epoch_s;
    let days = timely::execute_directly(move |worker| {
        let mut flow = views::build(worker, &config, |_, _| {});
        let mut traffic = Traffic { random: Random(crate::workload::SEED), requests: 0, steps: 0 };
        let mut days = Vec::new();
        for epoch in 0..10 * per_day {
            let busy = 8 + (epoch % per_day) * 16 / per_day;
            flow.inputs.send(&mut traffic.rows(busy)).expect("invariant: a batch fits the feed");
            flow.inputs.advance(epoch + 1).expect("invariant: epochs rise");
            while flow.closed() != Some(epoch) {
                worker.step();
            }
            if (epoch + 1).is_multiple_of(per_day) {
                days.push(resident_kib());
            }
        }
        days
    });
    let growth = days[9] as f64 / days[1].max(1) as f64;
    println!(
        "ten simulated days, resident MiB at the end of each: {:?}",
        days.iter().map(|kib| kib / 1024).collect::<Vec<_>>()
    );
    format!(
        r#"{{"epoch_s":{epoch_s},"resident_kib_by_day":{days:?},"day_10_over_day_2":{growth:.3},"met":{}}}"#,
        growth <= 1.05
    )
}

struct Traffic {
    random: Random,
    requests: u64,
    steps: u64,
}

impl Traffic {
    /// Of an epoch in which `busy` requests come, and those of ten epochs ago end.
    fn rows(&mut self, busy: u64) -> FlowRows {
        let mut rows = FlowRows::default();
        for _ in 0..busy {
            self.requests += 1;
            self.request(&mut rows);
        }
        for instance in 0..INSTANCES {
            self.steps += 1;
            let running = 1 + self.random.below(16) as u32;
            rows.steps.push(StepRow {
                instance: instance as u32,
                epoch: 1,
                step: self.steps,
                at_us: self.steps as i64 * 1000,
                running,
                decode_tokens: running,
                prefill_tokens: self.random.below(2) as u32 * 256,
                context_tokens: u64::from(running) * 700,
                step_us: 3000 + self.random.below(1000),
                shape: instance as u32 % 2,
                ..StepRow::default()
            });
        }
        rows
    }

    fn request(&mut self, rows: &mut FlowRows) {
        let number = self.requests;
        let (instance, model, tier) = ((number % INSTANCES) as u32, (number % 2) as u32, (number % 3) as u8);
        let tokens = 100 + self.random.below(8000) as u32;
        let load =
            |request, seq, event| LoadRow { request, seq, instance, tokens, event, model, tier, ..LoadRow::default() };
        rows.load.push(load(number, 1, LoadEvent::Arrived));
        let session = Some(number / 3);
        rows.traffic.push(TrafficRow::Arrived(ArrivedRow {
            model,
            tier,
            prompt_tokens: tokens,
            at_us: 0,
            session,
            turns: 1,
        }));
        let hash = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let kv = |seq, event| KvRow { instance, epoch: 1, seq, event };
        let seq = number / INSTANCES * 2;
        rows.kv.push(kv(seq + 1, KvChange::Stored { hash, parent: None, level: 0, tokens: 16 }));
        let Some(ended) = number.checked_sub(INSTANCES * 20) else { return };
        rows.load.push(load(ended, 2, LoadEvent::Finished));
        let gone = ended.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        rows.kv.push(kv(seq + 2, KvChange::Removed { hash: gone, level: 0 }));
        rows.traffic.push(TrafficRow::Finished(FinishedRow {
            model,
            tier,
            prompt_tokens: tokens,
            output_tokens: 1 + self.random.below(900) as u32,
            ttft_us: Some(10_000 + self.random.below(500_000)),
            itl_us_mean: Some(9_000),
            ..FinishedRow::default()
        }));
    }
}
