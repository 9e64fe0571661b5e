//! `status`, once or followed.

use std::{process::ExitCode, time::Duration};

use anyhow::{Context as _, Result};
use chrono::{SecondsFormat, Utc};
use crds::IngressDaemonSet;
use futures::StreamExt as _;
use kube::{
    ResourceExt as _,
    runtime::{
        WatchStreamExt as _,
        watcher::{self, Event, watcher},
    },
};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use super::say_if_operator_is_down;
use crate::{
    arguments::{Format, StatusOptions},
    cluster::Cluster,
    output::{Screen, Style, print, remark},
    status_view::StatusView,
};

/// How often ages are counted on.
const TICK: Duration = Duration::from_secs(1);
/// Exit code of a shell's command that SIGINT ended.
const INTERRUPTED: u8 = 128 + 2;
/// As good as never.
const FOR_EVER: Duration = Duration::from_hours(24 * 365);

/// Shows a resource.
pub async fn status(cluster: &Cluster, options: &StatusOptions, style: Style) -> Result<ExitCode> {
    let resource = cluster.find(options.one.name.as_deref()).await?;
    say_if_operator_is_down(cluster, &resource).await;
    let view = StatusView::of(&resource);
    if !options.watch && !options.until_complete {
        show(&view, options.output, style)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut following = Following { options, style, screen: Screen::default(), before: None };
    follow(cluster, &resource, &mut following).await
}

fn show(view: &StatusView, format: Format, style: Style) -> Result<()> {
    match format {
        Format::Table => print(&view.render(style, Utc::now().timestamp())),
        Format::Json => print(&format!("{}\n", serde_json::to_string_pretty(view)?)),
    }
}

struct Following<'a> {
    options: &'a StatusOptions,
    style: Style,
    screen: Screen,
    before: Option<StatusView>,
}

impl Following<'_> {
    /// Shows what is new: the whole on a terminal, a line for each change elsewhere.
    fn show(&mut self, view: &StatusView) -> Result<()> {
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

    /// Says that the resource is there no more. Programs that read one object a line find it beside them.
    fn gone(&mut self, name: &str) -> Result<()> {
        let said = format!("{name} was deleted");
        match (self.options.output, self.style.size) {
            (Format::Json, _) => remark(&said),
            (Format::Table, Some(size)) => self.screen.show(&said, size)?,
            (Format::Table, None) => print(&format!("{}  {said}\n", Utc::now().to_rfc3339_opts(SecondsFormat::Secs, true)))?,
        }
        self.before = None;
        Ok(())
    }

    /// How Ctrl-C ends it. A script that waits goes on only after a success.
    fn interrupted(&self) -> ExitCode {
        if self.options.until_complete { ExitCode::from(INTERRUPTED) } else { ExitCode::SUCCESS }
    }

    /// How it ends, when it does.
    fn outcome(&self, view: &StatusView) -> Option<ExitCode> {
        if !self.options.until_complete {
            return None;
        }
        if let Some(stalled) = &view.stalled {
            remark(&format!("the rollout is stalled, somebody must act: {stalled}"));
            return Some(ExitCode::FAILURE);
        }
        if let Some(over) = view.over.as_ref().filter(|_| !view.complete) {
            remark(&format!("the rollout is over: {over}"));
        }
        (view.complete || view.over.is_some()).then_some(ExitCode::SUCCESS)
    }
}

/// What a watch shows of one resource.
#[derive(Debug, Default)]
struct WatchedResource {
    /// UID of the one that was shown last.
    uid: Option<String>,
    /// What a list has shown, while it lasts.
    listed: Option<IngressDaemonSet>,
}

/// What is new of it.
#[derive(Debug)]
enum ResourceChange {
    Nothing,
    Changed(Box<IngressDaemonSet>),
    /// It is gone.
    Gone,
    /// It is gone, and this one was made under its name.
    Replaced(Box<IngressDaemonSet>),
}

impl WatchedResource {
    fn see(&mut self, event: Event<IngressDaemonSet>) -> ResourceChange {
        match event {
            Event::Init => {
                self.listed = None;
                ResourceChange::Nothing
            }
            Event::InitApply(resource) => {
                self.listed = Some(resource);
                ResourceChange::Nothing
            }
            // What was deleted while nothing was watched is missing in the next list.
            Event::InitDone => match self.listed.take() {
                Some(resource) => self.shown(resource),
                None => self.gone(),
            },
            Event::Apply(resource) => self.shown(resource),
            // Of one that another one has replaced already, nothing is shown.
            Event::Delete(resource) if self.uid == resource.metadata.uid => self.gone(),
            Event::Delete(_) => ResourceChange::Nothing,
        }
    }

    fn gone(&mut self) -> ResourceChange {
        self.uid.take().map_or(ResourceChange::Nothing, |_| ResourceChange::Gone)
    }

    fn shown(&mut self, resource: IngressDaemonSet) -> ResourceChange {
        let before = std::mem::replace(&mut self.uid, resource.metadata.uid.clone());
        let resource = Box::new(resource);
        if before.is_some() && before != self.uid { ResourceChange::Replaced(resource) } else { ResourceChange::Changed(resource) }
    }
}

async fn follow(cluster: &Cluster, resource: &IngressDaemonSet, following: &mut Following<'_>) -> Result<ExitCode> {
    let name = resource.name_any();
    let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let mut events = watcher(cluster.resources(), config).default_backoff().boxed();
    let mut watched = WatchedResource { uid: resource.metadata.uid.clone(), ..WatchedResource::default() };
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let timeout = following.options.timeout;
    let end = sleep_until(Instant::now() + timeout.unwrap_or(FOR_EVER));
    // One for all rounds: a new one each time would miss a Ctrl-C that comes while the table is drawn.
    let interrupt = tokio::signal::ctrl_c();
    tokio::pin!(end, interrupt);
    let mut view: Option<StatusView> = None;
    loop {
        tokio::select! {
            event = events.next() => {
                let news = match event.context("the watch ended")? {
                    Ok(event) => watched.see(event),
                    Err(error) => {
                        remark(&format!("the watch failed, retrying: {error}"));
                        continue;
                    }
                };
                if matches!(news, ResourceChange::Gone | ResourceChange::Replaced(_)) {
                    view = None;
                    following.gone(&name)?;
                }
                match news {
                    // Another one under its name is not what was waited for, either.
                    ResourceChange::Gone | ResourceChange::Replaced(_) if following.options.until_complete => return Ok(ExitCode::FAILURE),
                    ResourceChange::Changed(resource) if resource.metadata.deletion_timestamp.is_some() && following.options.until_complete => {
                        remark(&format!("{name} is being deleted"));
                        return Ok(ExitCode::FAILURE);
                    }
                    ResourceChange::Changed(resource) | ResourceChange::Replaced(resource) => view = Some(StatusView::of(&resource)),
                    ResourceChange::Gone | ResourceChange::Nothing => {}
                }
            }
            _ = ticks.tick(), if following.style.size.is_some() => {}
            _ = &mut interrupt => return Ok(following.interrupted()),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::One;
    use serde_json::json;

    fn resource(uid: &str) -> IngressDaemonSet {
        let object = json!({
            "apiVersion": "ingressdaemonsets.mumoshu.github.io/v1alpha1", "kind": "IngressDaemonSet",
            "metadata": {"name": "edge", "namespace": "web", "uid": uid}, "spec": {"template": {}},
        });
        serde_json::from_value(object).unwrap()
    }

    /// What is said of these events by somebody who has seen the resource of UID 1.
    fn said(events: impl IntoIterator<Item = Event<IngressDaemonSet>>) -> Vec<String> {
        let mut watched = WatchedResource { uid: Some("1".into()), ..WatchedResource::default() };
        let word = |news| match news {
            ResourceChange::Nothing => None,
            ResourceChange::Changed(resource) => Some(format!("shows {}", resource.metadata.uid.unwrap_or_default())),
            ResourceChange::Gone => Some("gone".to_owned()),
            ResourceChange::Replaced(resource) => Some(format!("gone, shows {}", resource.metadata.uid.unwrap_or_default())),
        };
        events.into_iter().filter_map(|event| word(watched.see(event))).collect()
    }

    fn list(uids: &[&str]) -> Vec<Event<IngressDaemonSet>> {
        let listed = uids.iter().map(|uid| Event::InitApply(resource(uid)));
        std::iter::once(Event::Init).chain(listed).chain([Event::InitDone]).collect()
    }

    #[test]
    fn a_deleted_resource_is_reported_gone_once() {
        let events = list(&["1"]).into_iter().chain([Event::Apply(resource("1")), Event::Delete(resource("1"))]).chain(list(&[]));
        assert_eq!(said(events), ["shows 1", "shows 1", "gone"]);
    }

    #[test]
    fn a_resource_deleted_without_a_watch_is_reported_gone() {
        assert_eq!(said(list(&[])), ["gone"]);
        assert_eq!(said(list(&["1"]).into_iter().chain(list(&[]))), ["shows 1", "gone"]);
    }

    #[test]
    fn one_that_is_made_under_its_name_is_another_one() {
        let again = [Event::Delete(resource("1")), Event::Apply(resource("2"))];
        assert_eq!(said(list(&["1"]).into_iter().chain(again)), ["shows 1", "gone", "shows 2"]);
        assert_eq!(said(list(&["2"])), ["gone, shows 2"]);
        assert_eq!(said(list(&["2"]).into_iter().chain([Event::Delete(resource("1"))])), ["gone, shows 2"]);
    }

    fn following(until_complete: bool) -> Following<'static> {
        let options = StatusOptions { one: One::default(), watch: true, until_complete, timeout: None, output: Format::Table };
        Following { options: Box::leak(Box::new(options)), style: Style::default(), screen: Screen::default(), before: None }
    }

    #[test]
    fn a_wait_succeeds_at_once_where_no_node_wants_pods() {
        let mut resource = resource("1");
        let ready = json!({ "type": "Ready", "status": "True", "reason": "ScaledToZero", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" });
        let state = json!({ "name": "n1", "phase": "Waiting", "since": "2026-01-01T00:00:00Z", "reason": "WithoutPods", "message": "" });
        let nodes =
            json!({ "desired": 1, "current": 1, "updated": 0, "ready": 1, "available": 1, "unavailable": 0, "degraded": 0, "detached": 0 });
        let status =
            json!({ "conditions": [ready], "nodeStates": [state], "nodes": nodes, "revisions": { "current": "a", "update": "b" } });
        resource.status = Some(serde_json::from_value(status).unwrap());
        let outcome = |until_complete| following(until_complete).outcome(&StatusView::of(&resource));
        assert_eq!([false, true].map(outcome), [None, Some(ExitCode::SUCCESS)]);
    }

    #[test]
    fn ctrl_c_is_success_only_without_a_wait() {
        assert_eq!([false, true].map(|until_complete| following(until_complete).interrupted()), [ExitCode::SUCCESS, ExitCode::from(130)]);
    }
}
