//! Groups with something between them and their rank.

use memwall_comm::{Call, Clock, CommError, Group, Groups, Pending, Traffic};
use memwall_layout::Axis;
use memwall_tensor::Cpu;
use std::sync::Arc;

/// What is done around the collectives of a rank, over all of its groups.
pub trait Hook: Send + Sync + 'static {
    fn start(
        &self,
        group: &dyn Group<Cpu>,
        device: &Cpu,
        call: Call<Cpu>,
    ) -> Result<Pending<Cpu>, CommError> {
        group.start(device, call)
    }

    fn wait(
        &self,
        group: &dyn Group<Cpu>,
        device: &Cpu,
        pending: Pending<Cpu>,
    ) -> Result<Call<Cpu>, CommError> {
        group.wait(device, pending)
    }
}

struct Wrapped<H> {
    group: Box<dyn Group<Cpu>>,
    hook: Arc<H>,
}

/// A rank's groups with a hook.
pub fn wrapped<H: Hook>(groups: Groups<Cpu>, hook: &Arc<H>) -> Groups<Cpu> {
    let one = |group| Box::new(Wrapped { group, hook: hook.clone() }) as Box<dyn Group<Cpu>>;
    Groups {
        mesh: groups.mesh,
        rank: groups.rank,
        data: one(groups.data),
        shard: one(groups.shard),
        replicate: one(groups.replicate),
    }
}

impl<H: Hook> Group<Cpu> for Wrapped<H> {
    fn rank(&self) -> usize {
        self.group.rank()
    }
    fn size(&self) -> usize {
        self.group.size()
    }
    fn axes(&self) -> &[Axis] {
        self.group.axes()
    }
    fn start(&self, device: &Cpu, call: Call<Cpu>) -> Result<Pending<Cpu>, CommError> {
        self.hook.start(self.group.as_ref(), device, call)
    }
    fn wait(&self, device: &Cpu, pending: Pending<Cpu>) -> Result<Call<Cpu>, CommError> {
        self.hook.wait(self.group.as_ref(), device, pending)
    }
    fn traffic(&self) -> Traffic {
        self.group.traffic()
    }
    fn clock(&self) -> Clock {
        self.group.clock()
    }
}
