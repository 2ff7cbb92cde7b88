//! Ranks as threads of this process.

use super::Fabric;
use crate::Groups;
use memwall_tensor::{Cpu, Description};

impl Fabric {
    /// Has each rank do `work` on a thread of its own, with a device of one thread and `arena` bytes, and returns what they
    /// returned, by rank. Alone, a rank has a device that shares nothing, and groups of one.
    ///
    /// A rank that fails stops the others by [`Fabric::fail_rank`]; nobody else does it for a thread.
    ///
    /// # Panics
    /// When a rank does, or the operating system has no memory or threads for them.
    pub fn threads<T: Send>(&self, arena: u64, work: impl Fn(Cpu, Groups<Cpu>) -> T + Sync) -> Vec<T> {
        let alone = self.world() == 1;
        std::thread::scope(|scope| {
            let rank = |rank| {
                let work = &work;
                scope.spawn(move || {
                    let device =
                        Cpu::new(Description { threads: 1 }, arena).expect("memory for a rank's device");
                    if alone {
                        work(device, Groups::solo())
                    } else {
                        work(device.sharing(self.arena(rank).clone()), self.groups(rank))
                    }
                })
            };
            let ranks: Vec<_> = (0..self.world()).map(rank).collect();
            ranks.into_iter().map(|r| r.join().unwrap_or_else(|e| std::panic::resume_unwind(e))).collect()
        })
    }
}
