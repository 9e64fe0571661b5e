//! One action, carried out, and what the operator remembers of it.

use super::Memory;
use crate::{
    metrics::Metrics,
    write::{Announcer, Error, TIMEOUT, Writer, written_for},
};
use kube::Client;
use planner::{Action, Snapshot, objects::health_checker, plan::Supporting};
use serde_json::Value;

/// Writes health checkers.
pub(super) fn is_checker(action: &Action) -> bool {
    matches!(action, Action::Apply { object: Supporting::DaemonSet(_), .. })
}

/// What is written that health checkers need: they themselves, or the key and the rights without which they are not written.
pub(super) fn needed_by_checkers(action: &Action) -> Option<&Supporting> {
    if let Action::Apply { object, .. } = action { Some(object) } else { None }
}

/// Carries out actions on behalf of one resource.
pub struct Actor<'a> {
    /// API client without retries of its own.
    pub client: &'a Client,
    /// Metrics.
    pub metrics: &'a Metrics,
    /// Events.
    pub announcer: &'a Announcer,
    /// What the decision was based on.
    pub snapshot: &'a Snapshot,
}

impl Actor<'_> {
    /// Carries out one action and remembers what it brought about.
    pub async fn act(&self, action: &Action, memory: &tokio::sync::Mutex<&mut Memory>) -> Result<(), Error> {
        let writer = Writer { client: self.client, metrics: self.metrics, snapshot: self.snapshot };
        let call = tokio::time::timeout(TIMEOUT, writer.write(action));
        let result = call.await.unwrap_or_else(|_| Err(Error::Transient("no answer in time".into())));
        let mut memory = memory.lock().await;
        let refused = matches!(result, Err(Error::Invalid(_) | Error::Forbidden(_)));
        if let Action::CreateDeployment { id, .. } = action
            && !refused
        {
            // Used up unless it was refused for certain: the answer may have been lost, the object made.
            memory.reserved.retain(|reserved| reserved != id);
        }
        let written = written_for(action);
        match result {
            Ok(done) => {
                if let Some((kind, version)) = done.written {
                    memory.expect(kind, version);
                }
                if let Some((uid, generation)) = done.generation {
                    memory.written_generations.insert(uid, generation);
                }
                if let Some((node, object)) = written {
                    memory.accept(node, object);
                }
                self.remember(action, &mut memory);
                drop(memory);
                self.announcer.done(self.snapshot, action).await;
                Ok(())
            }
            Err(error) => {
                match (&error, written) {
                    (Error::Foreign(name), _) => {
                        memory.foreign_names.insert(name.clone());
                    }
                    (Error::Invalid(message) | Error::Forbidden(message), Some((node, object)))
                        if !memory.refuse(node, object, message, self.snapshot.resource.generation) =>
                    {
                        return Err(Error::Known);
                    }
                    (Error::Invalid(message) | Error::Forbidden(message), None)
                        if needed_by_checkers(action)
                            .is_some_and(|object| !memory.refuse_checkers(object, message, self.snapshot.resource.generation)) =>
                    {
                        return Err(Error::Known);
                    }
                    _ => {}
                }
                Err(error)
            }
        }
    }

    fn remember(&self, action: &Action, memory: &mut Memory) {
        match action {
            Action::WriteStatus { reserve, status, .. } => {
                memory.reserved.extend(reserve);
                if let Some(ledger) = &status.rollout {
                    let before = self.snapshot.resource.ledger();
                    self.metrics.ledger_written(before, ledger);
                }
                memory.status_written = Some(std::time::Instant::now());
            }
            Action::Apply { object, body } => {
                memory.accept_checkers(object);
                if !is_checker(action) {
                    memory.assert(health_checker::assertion(object, body));
                }
            }
            Action::Delete { object: object @ Supporting::ClusterRoleBinding(_), .. } => {
                memory.assert_deleted(health_checker::assertion(object, &Value::Null));
            }
            Action::PatchDeployment { write, .. } | Action::PatchNode { write, .. } => self.metrics.wrote(*write),
            _ => {}
        }
    }
}
