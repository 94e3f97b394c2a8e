//! The twin of `diagnosis`: all rows kept, each window told anew from the first row on.
//!
//! Invariant: the same rules as the operator for unbounded state. The fits are those of `step_regression`, which
//! `instance_state`'s twin judges, learnt anew for each step. Cost: O(all steps) per step of a window. State: all rows.
use std::collections::{BTreeMap, BTreeSet};

use crate::{
    DiagnosedRequest, DiagnosedStep, DiagnosisConfig, DiagnosisInput, DiagnosisRow, Verdict, WorstStep,
    step_regression::StepRegression,
};

/// See the module.
pub struct SlowDiagnosis {
    config: DiagnosisConfig,
    /// Steps that count, with their epoch, in order.
    steps: Vec<(u64, DiagnosedStep)>,
    requests: Vec<(u64, DiagnosedRequest)>,
    /// Models that were told of, by window.
    told: BTreeSet<(u64, u32)>,
    latest: BTreeMap<(u32, u32), (u64, u64)>,
}

impl SlowDiagnosis {
    pub fn new(config: DiagnosisConfig) -> Self {
        let (steps, requests, told, latest) = (Vec::new(), Vec::new(), BTreeSet::new(), BTreeMap::new());
        Self { config, steps, requests, told, latest }
    }

    /// Folds one epoch, must be called for every epoch; gives its rows, by model.
    pub fn epoch(&mut self, epoch: u64, rows: &[DiagnosisInput]) -> Vec<DiagnosisRow> {
        let mut rows: Vec<_> = rows.iter().filter(|row| row.check().is_ok()).copied().collect();
        rows.sort();
        for row in rows {
            self.told.insert((epoch / self.config.window_epochs, row.model()));
            match row {
                DiagnosisInput::Request(row) => self.requests.push((epoch, row)),
                DiagnosisInput::Step(row) => {
                    let latest = self.latest.entry((row.model, row.instance)).or_default();
                    if (row.epoch, row.step) > *latest {
                        *latest = (row.epoch, row.step);
                        self.steps.push((epoch, row));
                    }
                }
            }
        }
        if !(epoch + 1).is_multiple_of(self.config.window_epochs) {
            return Vec::new();
        }
        let window = epoch / self.config.window_epochs;
        let models = self.told.iter().filter(|(at, _)| *at == window).map(|(_, model)| *model);
        models.map(|model| self.row(model, epoch)).collect()
    }

    /// What the steps before the window taught of an incarnation: all steps, and those that only decode by their context.
    fn taught(&self, row: &DiagnosedStep, window: u64) -> (StepRegression, StepRegression) {
        let mut content = StepRegression::new(self.config.forgetting);
        let mut decode = StepRegression::new(self.config.forgetting);
        let of = |step: &DiagnosedStep| (step.model, step.instance, step.epoch) == (row.model, row.instance, row.epoch);
        for (_, step) in self.steps.iter().filter(|(epoch, step)| *epoch < window && of(step)) {
            content.learn(step.decode_tokens, step.prefill_tokens, step.step_us);
            if step.prefill_tokens == 0 {
                decode.learn(step.decode_tokens, step.context_tokens, step.step_us);
            }
        }
        (content, decode)
    }

    fn wait_us(&self, row: &DiagnosedRequest, window: u64) -> u64 {
        let of = |step: &DiagnosedStep| step.model == row.model && Some(step.instance) == row.instance;
        let Some((_, latest)) = self.steps.iter().rev().find(|(_, step)| of(step)) else { return 0 };
        let rate = self.taught(latest, window).0.prefill_tokens_per_s().unwrap_or(0);
        match row.ttft_us {
            Some(ttft_us) if rate > 0 => {
                let spent = row.queue_us + u64::from(row.computed_tokens) * 1_000_000 / rate;
                ttft_us.min(row.total_us).saturating_sub(spent)
            }
            _ => 0,
        }
    }

    fn row(&self, model: u32, epoch: u64) -> DiagnosisRow {
        let window = epoch + 1 - self.config.window_epochs;
        let mut requests: Vec<DiagnosedRequest> =
            self.requests.iter().filter(|(at, _)| *at >= window).map(|(_, row)| *row).collect();
        requests.retain(|row| row.model == model);
        requests.sort_by(|a, b| b.cmp(a));
        let all = requests.len() as u64;
        let slow: Vec<DiagnosedRequest> = requests.into_iter().take(all.div_ceil(100) as usize).collect();
        let total: u64 = slow.iter().map(|row| row.total_us).sum();
        let queue: u64 = slow.iter().map(|row| row.queue_us).sum();
        let wait: u64 = slow.iter().map(|row| self.wait_us(row, window)).sum();
        let mut row = DiagnosisRow {
            epoch,
            model,
            from_epoch: window,
            verdict: Verdict::Clear,
            requests: all,
            slow_requests: slow.len() as u64,
            slow_from_us: slow.iter().map(|row| row.total_us).min().unwrap_or(0),
            slow_total_us: total,
            slow_queue_us: queue,
            slow_wait_us: wait,
            queue_share: (total > 0).then(|| (queue + wait) * 1000 / total),
            steps: 0,
            steps_us: 0,
            spikes: 0,
            spikes_us: 0,
            spikes_paged: 0,
            spike_share: None,
            decodes: 0,
            decodes_us: 0,
            decodes_predicted_us: 0,
            context_us: 0,
            decode_ratio: None,
            worst: [slow.first(), slow.get(1), slow.get(2)].map(|row| row.map(|row| row.request)),
            worst_step: None,
        };
        for (_, step) in self.steps.iter().filter(|(at, step)| *at >= window && step.model == model) {
            self.judge(&mut row, step, window);
        }
        row.spike_share = (row.steps_us > 0).then(|| row.spikes_us * 1000 / row.steps_us);
        row.decode_ratio = (row.decodes_predicted_us > 0).then(|| row.decodes_us * 1000 / row.decodes_predicted_us);
        let config = &self.config;
        row.verdict = match &row {
            row if row.queue_share > Some(config.queue_share_most) => Verdict::Scheduling,
            row if row.spike_share > Some(config.spike_share_most) => Verdict::IterationSpikes,
            row if row.decode_ratio > Some(config.decode_ratio_most) => Verdict::Bandwidth,
            row if row.requests == 0 || row.steps == 0 => Verdict::TooLittle,
            _ => Verdict::Clear,
        };
        row
    }

    fn judge(&self, row: &mut DiagnosisRow, step: &DiagnosedStep, window: u64) {
        let (content, decode) = self.taught(step, window);
        let is_idle = step.decode_tokens == 0 && step.prefill_tokens == 0;
        let Some(content) = content.fit(self.config.min_samples).filter(|_| !is_idle) else { return };
        let predicted = content.predict_ns(step.decode_tokens.into(), step.prefill_tokens.into()) / 1000;
        row.steps += 1;
        row.steps_us += step.step_us;
        let is_long = step.step_us * 1000 > predicted * self.config.spike_ratio;
        if is_long && step.step_us >= predicted + self.config.spike_least_us {
            row.spikes += 1;
            row.spikes_us += step.step_us - predicted;
            row.spikes_paged += u64::from(step.paged_blocks > 0);
            let worst = WorstStep {
                excess_us: step.step_us - predicted,
                instance: step.instance,
                epoch: step.epoch,
                step: step.step,
                step_us: step.step_us,
            };
            row.worst_step = row.worst_step.max(Some(worst));
        } else if step.prefill_tokens == 0
            && let Some(decode) = decode.fit(self.config.min_samples)
        {
            let [whole, without] = [u64::from(step.context_tokens), 0]
                .map(|context| decode.predict_ns(step.decode_tokens.into(), context));
            row.decodes += 1;
            row.decodes_us += step.step_us;
            row.decodes_predicted_us += whole / 1000;
            row.context_us += (whole - without) / 1000;
        }
    }
}
