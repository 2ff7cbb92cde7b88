//! memwall-engine
