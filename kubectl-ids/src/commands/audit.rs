//! `audit`: judges a cluster that is in use.

use std::{process::ExitCode, time::Duration};

use anyhow::{Result, ensure};
use chrono::{SecondsFormat, Utc};
use tokio::time::{Instant, sleep_until};

use crate::{
    arguments,
    audit::{AuditCounts, ResourceViolation, RunningAudit},
    cluster::Cluster,
    failure::listed,
    output::{Style, Tone, in_one_line, print, remarks, span},
};

/// As good as never.
const FOR_EVER: Duration = Duration::from_hours(24 * 365);

/// Judges until Ctrl-C, or for a time.
pub async fn audit(cluster: &Cluster, options: &arguments::AuditOptions, style: Style) -> Result<ExitCode> {
    if options.name.is_some() {
        cluster.find(options.name.as_deref()).await?;
    }
    let mut audit = RunningAudit::begin(cluster, options.name.as_deref()).await?;
    let resources = audit.judge.resources();
    ensure!(
        !resources.is_empty() || options.name.is_none(),
        "the spec is not valid, so the audit has nothing to judge by: correct the spec, see condition Valid"
    );
    let names = if resources.is_empty() { "every new resource".to_owned() } else { listed(&resources) };
    let until = if options.duration.is_some() { "" } else { "; end with Ctrl-C" };
    print(&format!("judging {names} in namespace {}{until}\n", cluster.namespace))?;
    let started = Instant::now();
    let end = sleep_until(started + options.duration.unwrap_or(FOR_EVER));
    // One for all rounds: a new one each time would miss a Ctrl-C that comes while changes are judged.
    let interrupt = tokio::signal::ctrl_c();
    tokio::pin!(end, interrupt);
    let mut violations = 0;
    loop {
        tokio::select! {
            found = audit.next() => {
                remarks(&std::mem::take(&mut audit.remarks));
                violations += report(&found, style)?;
            }
            _ = &mut interrupt => break,
            () = &mut end => break,
        }
    }
    let (found, judged) = audit.end();
    violations += report(&found, style)?;
    let seconds = i64::try_from(started.elapsed().as_secs()).unwrap_or(i64::MAX);
    let number = style.paint(&format!("{violations} violations"), if violations == 0 { Tone::Good } else { Tone::Bad });
    let AuditCounts { changes, answers, unwatched } = judged;
    print(&format!("judged {changes} changes and {answers} answers of health checkers in {}: {number}\n", span(seconds)))?;
    if !unwatched.is_empty() {
        remarks(&[format!("the watch of {} is broken: the audit did not judge all changes", listed(&unwatched))]);
    }
    Ok(if violations == 0 && unwatched.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn report(found: &[ResourceViolation], style: Style) -> Result<usize> {
    for finding in found {
        let time = Utc::now().to_rfc3339_opts(SecondsFormat::Secs, true);
        print(&format!("{time}  {}\n", describe(finding, style)))?;
    }
    Ok(found.len())
}

/// A violation in one line: what was seen may be in the words of whoever may write the objects.
fn describe(ResourceViolation { resource, violation }: &ResourceViolation, style: Style) -> String {
    let code = style.paint(violation.property.code(), Tone::Bad);
    format!("{code} {resource}  {}", in_one_line(&violation.to_string()))
}

#[cfg(test)]
#[path = "audit_tests.rs"]
mod tests;
