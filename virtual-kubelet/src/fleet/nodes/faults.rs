//! What goes wrong with the nodes of a fleet because it is asked for.

use std::time::Duration;

use tokio::time::Instant;

use super::Keeper;
use crate::fleet::faults::{AskedFaults, LONGEST, NodeFault, Told};
use crate::fleet::shard::Order;
use crate::fleet::share_of;

/// Kubelets that start again take about so long until the first probes are through.
const UNREADY_AFTER_RESTART: Duration = Duration::from_secs(10);

impl Keeper {
    /// A Node's annotations ask for faults.
    pub(super) async fn ask(&mut self, index: u32, asked: AskedFaults, wrong: Vec<String>) {
        if asked == self.nodes[index as usize].asked {
            return;
        }
        for wrong in wrong {
            tracing::warn!(node = self.config.node_name(index), "annotation {wrong}");
        }
        let before = self.nodes[index as usize].is_lost();
        let earlier = std::mem::replace(&mut self.nodes[index as usize].asked, asked);
        let asked = &self.nodes[index as usize].asked;
        if asked.restart.is_some() && asked.restart != earlier.restart && self.nodes[index as usize].met {
            self.tell(Order::ForgetReadiness(index, UNREADY_AFTER_RESTART)).await;
        }
        if earlier.late_lease != asked.late_lease {
            self.renewals_change(index);
        }
        self.lost_or_found(index, before).await;
    }

    /// A call asks for a fault.
    pub(super) async fn strike(&mut self, told: Told) {
        let (index, fault) = match told {
            Told::Node(index, fault) => (index, fault),
            Told::Pod(namespace, name, fault) => {
                let share = share_of(&namespace, &name, self.shards.len());
                return self.tell_one(share, Order::PodFault(namespace, name, fault)).await;
            }
            Told::Look(look) => {
                let share = share_of(&look.target.pod.namespace, &look.target.pod.name, self.shards.len());
                return self.tell_one(share, Order::Look(look)).await;
            }
        };
        let Some(record) = self.nodes.get_mut(index as usize) else { return };
        let before = record.is_lost();
        match fault {
            NodeFault::Lost => record.told_lost = true,
            NodeFault::Found => {
                (record.told_lost, record.told_late) = (false, Duration::ZERO);
                self.renewals_change(index);
            }
            NodeFault::LateLease(late) => {
                record.told_late = late.min(LONGEST);
                self.renewals_change(index);
            }
            NodeFault::KubeletRestart => self.tell(Order::ForgetReadiness(index, UNREADY_AFTER_RESTART)).await,
        }
        self.lost_or_found(index, before).await;
    }

    /// The next renewal is due now, or as late as is asked for.
    fn renewals_change(&mut self, index: u32) {
        if self.nodes[index as usize].uid.is_some() {
            let now = Instant::now();
            self.plan_renewal(index, now);
        }
    }

    async fn lost_or_found(&mut self, index: u32, before: bool) {
        let (now, lost) = (Instant::now(), self.nodes[index as usize].is_lost());
        if lost == before {
            return;
        }
        tracing::warn!(node = self.config.node_name(index), lost, "simulating the loss of a node");
        if !lost {
            self.renewals_change(index);
            self.work.insert(index, now, now);
        }
        self.tell(Order::Silence(index, lost)).await;
    }

    async fn tell_one(&self, share: usize, order: Order) {
        if let Some(shard) = self.shards.get(share) {
            // A shard that has ended ends with the fleet.
            let _ = shard.send(order).await;
        }
    }

    async fn tell(&self, order: Order) {
        for shard in &self.shards {
            // A shard that has ended ends with the fleet.
            let _ = shard.send(order.clone()).await;
        }
    }
}
