//! What an allocation is for.

use std::ops::{Index, IndexMut};

/// The owner class of an allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Category {
    /// Parameters as the forward pass reads them.
    Weights,
    /// f32 copies of parameters that are kept in a shorter type.
    MasterWeights,
    /// Gradients of parameters, accumulators included.
    Gradients,
    /// Moments of the optimizer.
    OptimizerState,
    /// What a unit hands on or keeps for its backward.
    Activations,
    /// Parameters gathered from other ranks.
    Gathered,
    /// Buffers of collectives.
    Communication,
    /// Space that an operation needs while it runs, and constant tables.
    Workspace,
    /// Token ids, targets and positions.
    Data,
}

impl Category {
    /// All categories, in the order of tables.
    pub const ALL: [Category; 9] = [
        Category::Weights,
        Category::MasterWeights,
        Category::Gradients,
        Category::OptimizerState,
        Category::Activations,
        Category::Gathered,
        Category::Communication,
        Category::Workspace,
        Category::Data,
    ];

    /// Whether other ranks of the machine read it in place. Such memory has no large pages on most machines, so what
    /// collectives do not read stays private. It lives as long as the rank: arena bytes that were shared now and private
    /// then would be resident twice.
    pub const fn is_shared(self) -> bool {
        matches!(self, Category::Weights | Category::Gradients | Category::Communication)
    }

    /// Name in tables and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Category::Weights => "weights",
            Category::MasterWeights => "master_weights",
            Category::Gradients => "gradients",
            Category::OptimizerState => "optimizer_state",
            Category::Activations => "activations",
            Category::Gathered => "gathered",
            Category::Communication => "communication",
            Category::Workspace => "workspace",
            Category::Data => "data",
        }
    }
}

/// Bytes for each category.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ByCategory([u64; 9]);

impl ByCategory {
    /// Sum over the categories.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Each category with its bytes, in the order of tables.
    pub fn iter(&self) -> impl Iterator<Item = (Category, u64)> + '_ {
        Category::ALL.into_iter().map(|c| (c, self[c]))
    }
}

impl Index<Category> for ByCategory {
    type Output = u64;
    fn index(&self, c: Category) -> &u64 {
        &self.0[c as usize]
    }
}

impl IndexMut<Category> for ByCategory {
    fn index_mut(&mut self, c: Category) -> &mut u64 {
        &mut self.0[c as usize]
    }
}
