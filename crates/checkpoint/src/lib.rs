//! memwall-checkpoint
