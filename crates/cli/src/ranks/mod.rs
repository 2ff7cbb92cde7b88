//! Ranks as processes of this machine. The one that the user starts supervises them: it checks the job, makes the memory
//! that they share, starts one process for each, and sees to it that all end when one does.
//!
//! - [`supervise`]: the supervisor's life.
//! - [`Heir`]: what a rank's process has got from it.
//!
//! Nothing of a run outlives its processes, whichever is killed: ranks die with the supervisor, the memory files have no
//! name and go with the last process, and so does the lock of the run folder.

mod heir;
mod process;
mod screen;
mod supervise;
mod system;
mod verdict;
mod voice;

pub(crate) use heir::Heir;
pub(crate) use supervise::{Kept, supervise};
pub(crate) use system::bind;
