//! The health port from the moment that this process has it: answering, handing over, going on when a successor ends, and
//! leaving.

use crate::{
    connections::Table,
    handover::Held,
    metrics::Metrics,
    server::{self, HealthPort},
};
use std::{
    pin::pin,
    sync::{Arc, atomic::Ordering::Relaxed},
};
use tokio_util::sync::CancellationToken;
use tracing::info;

/// What answers on the port.
#[derive(Debug)]
pub struct PortServer {
    /// Answers.
    pub respond: Arc<HealthPort>,
    /// Who is connected.
    pub table: Arc<Table>,
    /// Counts hand-overs.
    pub metrics: Arc<Metrics>,
}

/// When to end.
#[derive(Clone, Debug, Default)]
pub struct Ending {
    /// This process was asked to end; it answers on, and gives the port to whoever asks.
    pub asked: CancellationToken,
    /// It ends now.
    pub now: CancellationToken,
}

/// Serves until the end. A process that has given the port away and is asked to end leaves with its last connection.
pub async fn serve(held: Held, service: &PortServer, ending: &Ending) {
    let Held { port, mut door } = held;
    let states = async {
        let mut asked = false;
        loop {
            let mut line = {
                // Neither is dropped before a successor has the port: it may be half-way there when this process is asked to
                // end, and would go on accepting beside a successor that it knows nothing of.
                let mut give = pin!(door.give(&port));
                let mut accept = pin!(server::accept(&port, &service.table, &service.respond, &ending.now));
                loop {
                    // Clients shall not come back to a process that is about to end.
                    service.respond.leaving.store(asked, Relaxed);
                    tokio::select! {
                        () = ending.asked.cancelled(), if !asked => asked = true,
                        line = &mut give => break line,
                        () = &mut accept => {}
                    }
                }
            };
            service.metrics.handovers.given.inc();
            service.respond.leaving.store(true, Relaxed);
            loop {
                tokio::select! {
                    () = ending.asked.cancelled(), if !asked => asked = true,
                    () = service.table.emptied(), if asked => return,
                    () = line.broken() => break,
                }
            }
            info!("the process that had taken the port has ended; answering again");
            service.metrics.handovers.back.inc();
        }
    };
    tokio::select! {
        biased;
        () = ending.now.cancelled() => {}
        () = server::sweep(&service.table) => {}
        () = states => {}
    }
    ending.now.cancel();
    drop(port);
    server::finish(&service.table).await;
}
