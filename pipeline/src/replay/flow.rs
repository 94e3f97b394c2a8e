//! The recorded rows go through the dataflow again, with the recorded epochs, and what policies read is compared with it; so is
//! what it had published of the service times by shape, which no other recorded row says.
//!
//! Invariant: one timely worker is enough, since the views do not depend on the number of workers. A view is compared only if
//! every row since the dataflow's start was there. Cost: that of the dataflow, once over the log.
//! State: the operators', and the readings and published rows of one dataflow, at most [`READINGS_MAX`] of each; further ones are
//! counted as not compared.

use std::{collections::BTreeMap, ops::Range, sync::Arc};

use operators::{BlocksHeld, FlowRows, PrefixIndexConfig, views::build_beside};
use queries::Topic;
use timely::worker::Worker;

use super::report::{Difference, Report};
use crate::{
    bus::{Archive, Published},
    config::Recorded,
    dataflow::{
        Feed, FlowViews, ForecastRequest, Names, RefusedRows, cached_blocks, current_view, flow_config, read_forecast,
        read_prefixes, service_rows, take_rows, view_mode,
    },
    gateway::reading::{prefixes_of, service_row, view_of},
    ids::{Micros, micros},
    policy::{InstanceView, Tier, ViewMode},
    rows::{EPOCH_TOPICS, EpochRow, PolicyInputRow, ServiceTimeRow},
};

/// Readings held for one dataflow.
const READINGS_MAX: usize = 100_000;

/// Readings to compare with one dataflow.
#[derive(Default)]
struct Life {
    epochs: Vec<EpochRow>,
    readings: Vec<PolicyInputRow>,
    published: Vec<ServiceTimeRow>,
}

/// Compares every reading of the log with the dataflow that it came from.
pub fn compare(archive: &Archive, settings: &dyn Fn(&str) -> Result<Recorded, String>, report: &mut Report) {
    let mut lives: BTreeMap<Micros, Life> = BTreeMap::new();
    for read in archive.rows::<EpochRow>() {
        match read {
            Ok((_, rows)) => rows.into_iter().for_each(|row| {
                lives.entry(row.flow_start).or_default().epochs.push(row);
            }),
            Err(error) => report.damaged(error.to_string()),
        }
    }
    for read in archive.rows::<PolicyInputRow>() {
        match read {
            Ok((_, rows)) => rows.into_iter().for_each(|row| assign(row, &mut lives, report)),
            Err(error) => report.damaged(error.to_string()),
        }
    }
    for read in archive.rows::<ServiceTimeRow>() {
        match read {
            Ok((_, rows)) => rows.into_iter().for_each(|row| match lives.range_mut(..row.as_of).next_back() {
                Some((_, life)) if life.published.len() < READINGS_MAX => life.published.push(row),
                Some(_) => report.cannot("service times: more rows of one dataflow than are held"),
                None => report.cannot("service times: no row of epochs"),
            }),
            Err(error) => report.damaged(error.to_string()),
        }
    }
    for life in lives.into_values().filter(|life| !life.readings.is_empty()) {
        match settings(&life.readings[0].settings) {
            Ok(under) => *report = life.run(archive.clone(), under, std::mem::take(report)),
            Err(reason) => report.cannot(format!("views: {reason}")),
        }
    }
}

/// Gives a reading to the dataflow that its view came from.
fn assign(row: PolicyInputRow, lives: &mut BTreeMap<Micros, Life>, report: &mut Report) {
    let Some(as_of) = row.view_as_of else {
        // Before the first epoch closed, or without a dataflow, there was nothing to read.
        return;
    };
    match lives.range_mut(..as_of).next_back() {
        Some((_, life)) if life.readings.len() < READINGS_MAX => life.readings.push(row),
        Some(_) => report.cannot("views: more readings of one dataflow than are held"),
        None => report.cannot("views: no row of epochs: written by an earlier version, or deleted by retention"),
    }
}

/// What is looked at when an epoch is complete.
enum Look<'a> {
    View(&'a PolicyInputRow),
    Prefixes(&'a PolicyInputRow),
    Published(&'a ServiceTimeRow),
    Forecast(&'a PolicyInputRow),
}

impl Life {
    fn run(self, archive: Archive, under: Recorded, report: Report) -> Report {
        timely::execute_directly(move |worker| {
            let mut report = report;
            let mut flow = Flow::start(worker, &under, &self.epochs[0], archive);
            let mut epochs = self.epochs.iter().peekable();
            let mut obstacle = None;
            for (epoch, looks) in self.looks(&mut report) {
                while let Some(row) = epochs.next_if(|row| row.epoch <= epoch && obstacle.is_none()) {
                    obstacle = flow.feed(worker, row).err();
                }
                if let Some(reason) = &obstacle {
                    looks.iter().for_each(|_| report.cannot(format!("views: {reason}")));
                    continue;
                }
                flow.close(worker, epoch);
                looks.iter().for_each(|look| flow.check(look, &under, &mut report));
            }
            report
        })
    }

    /// What is to be looked at, by the epoch it was as of.
    fn looks(&self, report: &mut Report) -> BTreeMap<u64, Vec<Look<'_>>> {
        let (start, length) = (self.epochs[0].flow_start, self.epochs[0].epoch_us.max(1));
        let epoch_of = |as_of: Micros| {
            let is_end = as_of > start && (as_of - start) % length == 0;
            is_end.then(|| ((as_of - start) / length - 1) as u64)
        };
        let mut looks: BTreeMap<u64, Vec<Look<'_>>> = BTreeMap::new();
        for row in &self.readings {
            match row.view_as_of.and_then(epoch_of) {
                Some(epoch) => looks.entry(epoch).or_default().push(Look::View(row)),
                None => report.cannot("views: as of a time that is no end of an epoch"),
            }
            match row.forecast_as_of.map(epoch_of) {
                Some(Some(epoch)) => looks.entry(epoch).or_default().push(Look::Forecast(row)),
                Some(None) => report.cannot("forecasts: as of a time that is no end of an epoch"),
                None => {}
            }
            match row.hits_as_of.map(epoch_of) {
                Some(Some(epoch)) => looks.entry(epoch).or_default().push(Look::Prefixes(row)),
                None if row.block_hashes.iter().all(Vec::is_empty) => {}
                _ => report.cannot("cached prefixes: the index changed while it was read"),
            }
        }
        for row in &self.published {
            match epoch_of(row.as_of) {
                Some(epoch) => looks.entry(epoch).or_default().push(Look::Published(row)),
                None => report.cannot("service times: as of a time that is no end of an epoch"),
            }
        }
        looks
    }
}

/// A dataflow fed from the log.
struct Flow {
    archive: Archive,
    handles: operators::FlowHandles,
    views: Arc<FlowViews>,
    feed: Feed,
    /// Per topic, the row after the last one fed.
    next: [Option<u64>; EPOCH_TOPICS],
}

impl Flow {
    fn start(worker: &mut Worker, under: &Recorded, first: &EpochRow, archive: Archive) -> Flow {
        let names = Names::default();
        let max_entries = under.dataflow.cache_entries_max;
        let prefixes = PrefixIndexConfig { max_entries, ..PrefixIndexConfig::default() };
        let views = Arc::new(FlowViews::new(1, prefixes, names.clone(), (first.flow_start, first.epoch_us)));
        let sink = views.clone();
        let config = (&flow_config(&under.dataflow), BlocksHeld::Shared(views.prefixes()));
        let handles = build_beside(worker, config, move |_, changes| sink.take(0, changes));
        Flow {
            archive,
            handles,
            views,
            feed: Feed::new(names, under.dataflow.open_requests_max),
            next: [None; EPOCH_TOPICS],
        }
    }

    /// Hands on the rows of one epoch.
    fn feed(&mut self, worker: &mut Worker, row: &EpochRow) -> Result<(), String> {
        let inputs = &mut self.handles.inputs;
        if row.epoch > inputs.open() {
            inputs.advance(row.epoch).map_err(|error| error.to_string())?;
        }
        for (at, (topic, rows)) in row.ranges().into_iter().enumerate() {
            if rows.is_empty() {
                continue;
            }
            if let Some(next) = self.next[at].filter(|next| *next != rows.start) {
                return Err(format!("no row of epochs for rows {next} to {} of {}", rows.start, topic.name()));
            }
            self.next[at] = Some(rows.end);
            self.feed_rows(worker, topic, rows)?;
        }
        Ok(())
    }

    fn feed_rows(&mut self, worker: &mut Worker, topic: Topic, rows: Range<u64>) -> Result<(), String> {
        let mut next = rows.start;
        for read in self.archive.batches(topic, rows.clone()) {
            let (first_row, batch) = read.map_err(|error| error.to_string())?;
            if first_row != next {
                break;
            }
            next = first_row + batch.num_rows() as u64;
            let mut taken = FlowRows::default();
            // What the feeder refused is refused here, too, and told nobody; when it was has no part in what is taken.
            let published = Published { topic, first_row, batch };
            self.feed.take(&published, 0, (&mut taken, &RefusedRows::default()));
            take_rows(worker, &mut self.handles.inputs, taken);
        }
        match next == rows.end {
            true => Ok(()),
            false => Err(format!("rows {next} to {} of {} are not in the log", rows.end, topic.name())),
        }
    }

    /// Closes everything up to `epoch`.
    fn close(&mut self, worker: &mut Worker, epoch: u64) {
        if self.handles.inputs.advance(epoch + 1).is_err() {
            return;
        }
        while self.handles.closed().is_none_or(|closed| closed < epoch) {
            worker.step_or_park(None);
        }
    }

    fn check(&self, look: &Look<'_>, under: &Recorded, report: &mut Report) {
        match look {
            Look::View(row) => self.check_view(row, under, report),
            Look::Prefixes(row) => self.check_prefixes(row, under, report),
            Look::Published(row) => self.check_published(row, report),
            Look::Forecast(row) => self.check_forecast(row, under, report),
        }
    }

    fn check_view(&self, row: &PolicyInputRow, under: &Recorded, report: &mut Report) {
        let Some(recorded) = view_of(row) else { return report.cannot("views: a mode this version does not know") };
        report.views += 1;
        let of = format!("view of {} at {}", row.decision_id, row.at);
        let state = self.views.load();
        let mut differs = |field: String, recorded: String, replayed: String| {
            if recorded != replayed {
                report.differs(Difference { of: of.clone(), field, recorded, replayed });
            }
        };
        let stale_after = micros(under.dataflow.stale_after);
        let silent_after = micros(under.dataflow.silent_after);
        let mode = view_mode(Some(&state), row.at, stale_after);
        differs("mode".into(), recorded.mode.name().into(), mode.name().into());
        differs("as_of".into(), format!("{:?}", recorded.as_of), format!("{:?}", state.as_of));
        for InstanceView { instance, epoch, engine, cached_blocks: blocks, .. } in recorded.instances {
            let figures = state.instances.get(&instance.0).filter(|figures| figures.step.epoch == epoch.0);
            let replayed = figures.map(|figures| current_view(&state, *figures, (row.at, silent_after)));
            // `{:?}` of a float names its bits: it is the shortest text that reads back to them.
            differs(format!("figures of {instance}"), format!("{engine:?}"), format!("{replayed:?}"));
            // Logs of earlier versions do not have them.
            if let Some(blocks) = blocks {
                let replayed = figures.map(|_| cached_blocks(&state, instance));
                differs(format!("cached blocks of {instance}"), format!("{:?}", Some(blocks)), format!("{replayed:?}"));
            }
        }
    }

    fn check_forecast(&self, row: &PolicyInputRow, under: &Recorded, report: &mut Report) {
        let (Some(tenant), Some(class)) = (&row.tenant, row.tenant_class.as_deref().and_then(Tier::from_name)) else {
            return report.cannot("forecasts: of nobody known");
        };
        report.forecasts += 1;
        let model = row.model.as_deref().unwrap_or(&under.served.model);
        let variants = under.policy_of(model).variants.possible_for(tenant);
        let request =
            ForecastRequest { model, variants: &variants, tenant_class: class, prompt_tokens: row.prompt_tokens };
        let replayed = read_forecast(&self.views.load(), self.views.names(), &request);
        let services: Vec<_> = replayed.services.iter().map(service_row).collect();
        let fields = [
            ("output_lengths", format!("{:?}", row.output_lengths), format!("{:?}", Some(replayed.lengths.to_vec()))),
            ("services", format!("{:?}", row.services), format!("{:?}", Some(services))),
        ];
        for (field, recorded, replayed) in fields.into_iter().filter(|(_, recorded, replayed)| recorded != replayed) {
            let of = format!("forecast of {}", row.decision_id);
            report.differs(Difference { of, field: field.into(), recorded, replayed });
        }
    }

    fn check_prefixes(&self, row: &PolicyInputRow, under: &Recorded, report: &mut Report) {
        if ViewMode::from_name(&row.view_mode).is_none_or(|mode| !mode.is_usable()) {
            return;
        }
        report.prefixes += 1;
        let reading = read_prefixes(&self.views, &row.block_hashes, under.served.block_size);
        let (replayed, recorded) = (reading.hits, prefixes_of(row).hits);
        if recorded != replayed {
            let (recorded, replayed) = (format!("{recorded:?}"), format!("{replayed:?}"));
            let of = format!("cached prefixes of {}", row.decision_id);
            report.differs(Difference { of, field: "hits".into(), recorded, replayed });
        }
    }

    fn check_published(&self, row: &ServiceTimeRow, report: &mut Report) {
        report.published += 1;
        let of = format!("service times of {} at {}", row.shape, row.as_of);
        let replayed = service_rows(&self.views.load(), self.views.names());
        match replayed.iter().find(|replayed| replayed.shape == row.shape) {
            Some(replayed) => report.compare(&of, row, replayed),
            None => {
                let (field, recorded, replayed) = ("shape".into(), row.shape.clone(), "not known".into());
                report.differs(Difference { of, field, recorded, replayed });
            }
        }
    }
}
