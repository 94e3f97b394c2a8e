//! `evenkeel replay --log DIR`: runs both levels and says what differs, or writes what another policy would have decided.
//!
//! Ends with success if everything that could be checked is equal. No state.

use std::path::{Path, PathBuf};

use anyhow::{bail, ensure};
use clap::{Args, ValueEnum};

use super::{
    flow,
    rebuild::{Obstacle, Rebuilder, tick},
    recording::{Recording, Settings},
    report::{Difference, Report},
    table::Table,
    what_if::what_if,
};
use crate::{bus::Archive, config::Recorded, gateway::reading::throttle_of, rows::PolicyInputRow};

/// How far a replay goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Level {
    /// Make the decisions again from their recorded inputs
    Policies,
    /// … and the inputs from the recorded rows
    All,
}

#[derive(Debug, Args)]
pub struct ReplayOptions {
    /// A server's data folder, or its `log` folder; it is only read
    #[arg(long)]
    pub log: PathBuf,
    #[arg(long, value_enum, default_value = "all")]
    pub level: Level,
    /// Say what another policy would have decided instead: a TOML file with [policy.…] settings that differ
    #[arg(long)]
    pub policy: Option<PathBuf>,
    /// With --policy: where the table goes, by its ending .parquet, .arrow, .json or .csv; without it, CSV to the terminal
    #[arg(long, requires = "policy")]
    pub out: Option<PathBuf>,
}

/// Runs the command.
pub fn execute(options: &ReplayOptions) -> anyhow::Result<()> {
    let archive = Archive::open(&options.log)?;
    if let Some(policy) = &options.policy {
        return print_what_if(&archive, policy, options.out.as_deref());
    }
    let report = replay(&archive, options.level);
    print!("{report}");
    ensure!(report.decisions > 0, "the log has no decisions");
    if !report.is_clean() {
        bail!("the replay differs from the log: {} differences, {} damaged", report.different, report.damage.len());
    }
    Ok(())
}

/// Replays a log.
pub fn replay(archive: &Archive, level: Level) -> Report {
    let mut report = Report::default();
    archive.damage().iter().for_each(|detail| report.damaged(detail.clone()));
    policies(archive, &mut report);
    if level == Level::All {
        let settings = Settings::read(archive, &mut |error| report.damaged(error.to_string()));
        flow::compare(archive, &|id| settings.get(id).cloned(), &mut report);
    }
    report
}

/// Makes every decision again.
fn policies(archive: &Archive, report: &mut Report) {
    let settings = Settings::read(archive, &mut |error| report.damaged(error.to_string()));
    let (mut recording, mut rebuilder) = (Recording::open(archive), Rebuilder::default());
    while let Some(made) = recording.next() {
        report.decisions += 1;
        let of = format!("decision {}", made.decision.decision_id);
        match rebuilder.rebuild(&made, &settings) {
            Ok(again) => {
                report.replayed += 1;
                report.compare(&of, &made.decision, &again);
            }
            Err(Obstacle::NoPolicy) => report.without_policy += 1,
            Err(Obstacle::Cannot(reason)) => report.cannot(reason),
            Err(Obstacle::Contradiction { expected, got }) => {
                report.replayed += 1;
                let difference = Difference { of, field: "course".into(), recorded: expected, replayed: got };
                report.differs(difference);
            }
        }
        recording.ticks.drain(..).for_each(|row| check_tick(&row, &settings, report));
    }
    recording.finish();
    recording.ticks.drain(..).for_each(|row| check_tick(&row, &settings, report));
    recording.damage.iter().for_each(|error| report.damaged(error.to_string()));
    if recording.dropped > 0 {
        let reason = format!("{} rows of policy_inputs whose decision is not in the log", recording.dropped);
        report.cannot(reason);
    }
}

/// A tick is in the log because it moved the throttle.
fn check_tick(row: &PolicyInputRow, settings: &Settings, report: &mut Report) {
    let under = match settings.get(&row.settings) {
        Ok(under) => under,
        Err(reason) => return report.cannot(reason),
    };
    let moved = throttle_of(row).and_then(|before| Some((before, tick(row, under, before)?)));
    let Some((before, after)) = moved else { return report.cannot("a tick that this version cannot read") };
    report.ticks += 1;
    if before == after {
        let (of, field) = (format!("tick at {}", row.at), "throttle_step".to_string());
        let (recorded, replayed) = (format!("moved from {}", before.step.name()), after.step.name().into());
        report.differs(Difference { of, field, recorded, replayed });
    }
}

/// The rows go out as they are made, so that a log of any length can be asked.
fn print_what_if(archive: &Archive, policy: &Path, out: Option<&Path>) -> anyhow::Result<()> {
    let other = |text: &str| Recorded::with_policy_file(text, policy).map_err(|error| error.to_string());
    let (mut table, mut rows, mut changed) = (Table::create(out)?, 0_u64, 0_u64);
    let problems = what_if(archive, &other, |row| {
        rows += 1;
        changed += u64::from(row.is_changed);
        table.push(row)
    })?;
    problems.said.iter().for_each(|problem| eprintln!("evenkeel: {problem}"));
    if problems.more > 0 {
        eprintln!("evenkeel: {} more of this kind", problems.more);
    }
    ensure!(rows > 0, "no decision of this log can be made again");
    eprintln!("evenkeel: {changed} of {rows} decisions would have been others");
    table.finish()
}
