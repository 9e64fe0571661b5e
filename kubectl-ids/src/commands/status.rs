//! `status`, once or followed.

use std::{process::ExitCode, time::Duration};

use anyhow::{Context as _, Result};
use chrono::{SecondsFormat, Utc};
use futures::StreamExt as _;
use kube::{
    ResourceExt as _,
    runtime::{WatchStreamExt as _, watcher},
};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use super::say_if_operator_is_down;
use crate::{
    arguments::{Format, Status},
    cluster::Cluster,
    output::{Screen, Style, print, remark},
    view::View,
};

/// How often ages are counted on.
const TICK: Duration = Duration::from_secs(1);
/// As good as never.
const FOR_EVER: Duration = Duration::from_hours(24 * 365);

/// Shows a resource.
pub async fn status(cluster: &Cluster, options: &Status, style: Style) -> Result<ExitCode> {
    let resource = cluster.find(options.one.name.as_deref()).await?;
    say_if_operator_is_down(cluster, &resource).await;
    let view = View::of(&resource);
    if !options.watch && !options.until_complete {
        show(&view, options.output, style)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut following = Following { options, style, screen: Screen::default(), before: None };
    follow(cluster, &resource.name_any(), &mut following).await
}

fn show(view: &View, format: Format, style: Style) -> Result<()> {
    match format {
        Format::Table => print(&view.render(style, Utc::now().timestamp())),
        Format::Json => print(&format!("{}\n", serde_json::to_string_pretty(view)?)),
    }
}

struct Following<'a> {
    options: &'a Status,
    style: Style,
    screen: Screen,
    before: Option<View>,
}

impl Following<'_> {
    /// Shows what is new: the whole on a terminal, a line for each change elsewhere.
    fn show(&mut self, view: &View) -> Result<()> {
        match (self.options.output, self.style.size) {
            (Format::Json, _) if self.before.as_ref() != Some(view) => print(&format!("{}\n", serde_json::to_string(view)?))?,
            (Format::Json, _) => {}
            (Format::Table, Some(_)) => {
                // The terminal may have another size by now.
                let style = Style { size: Style::of_stdout(true).size.or(self.style.size), ..self.style };
                let text = view.render(style, Utc::now().timestamp());
                self.screen.show(&text, style.size.unwrap_or((80, 24)))?;
            }
            (Format::Table, None) => {
                let time = Utc::now().to_rfc3339_opts(SecondsFormat::Secs, true);
                for line in view.changes(self.before.as_ref()) {
                    print(&format!("{time}  {line}\n"))?;
                }
            }
        }
        self.before = Some(view.clone());
        Ok(())
    }

    /// How it ends, when it does.
    fn outcome(&self, view: &View) -> Option<ExitCode> {
        if !self.options.until_complete {
            return None;
        }
        if let Some(stalled) = &view.stalled {
            remark(&format!("nothing goes on until somebody acts: {stalled}"));
            return Some(ExitCode::FAILURE);
        }
        view.complete.then_some(ExitCode::SUCCESS)
    }
}

async fn follow(cluster: &Cluster, name: &str, following: &mut Following<'_>) -> Result<ExitCode> {
    let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let mut events = watcher(cluster.resources(), config).default_backoff().applied_objects().boxed();
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let timeout = following.options.timeout;
    let end = sleep_until(Instant::now() + timeout.unwrap_or(FOR_EVER));
    // One for all rounds: a new one each time would miss a Ctrl-C that comes while the table is drawn.
    let interrupt = tokio::signal::ctrl_c();
    tokio::pin!(end, interrupt);
    let mut view: Option<View> = None;
    loop {
        tokio::select! {
            event = events.next() => match event.context("the watch ended")? {
                Ok(resource) if resource.metadata.deletion_timestamp.is_some() && following.options.until_complete => {
                    remark(&format!("{name} is being deleted"));
                    return Ok(ExitCode::FAILURE);
                }
                Ok(resource) => view = Some(View::of(&resource)),
                Err(error) => {
                    remark(&format!("the watch failed, trying again: {error}"));
                    continue;
                }
            },
            _ = ticks.tick(), if following.style.size.is_some() => {}
            _ = &mut interrupt => return Ok(ExitCode::SUCCESS),
            () = &mut end => {
                remark(&format!("not complete after {}", crate::output::span(i64::try_from(timeout.unwrap_or(FOR_EVER).as_secs()).unwrap_or(i64::MAX))));
                return Ok(ExitCode::FAILURE);
            }
        }
        let Some(view) = &view else { continue };
        following.show(view)?;
        if let Some(outcome) = following.outcome(view) {
            return Ok(outcome);
        }
    }
}
