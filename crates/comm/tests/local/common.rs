//! Ranks as threads of this process, and tensors of small whole numbers.

use memwall_comm::Group;
use memwall_comm::local::Fabric;
use memwall_layout::{Cut, Mesh, Placement, Placements, Reduction};
use memwall_tensor::device::Memory;
use memwall_tensor::{Category, Cpu, DType, Float, Shape, Tensor, bf16};
use std::time::Duration;

pub const ARENA: u64 = 1 << 25;
pub const PATIENT: Duration = Duration::from_secs(60);

pub const SUM: Placement = Placement::Partial(Reduction::Sum);
pub const PART: Placement = Placement::Shard(0, Cut::Even);
pub const WHOLE: Placement = Placement::Replicated;

pub fn fabric(mesh: Mesh, timeout: Duration) -> Fabric {
    Fabric::new(mesh, ARENA, timeout).unwrap()
}

/// A tensor of these values in a type, placed on all of a group's axes.
pub fn tensor(
    device: &Cpu,
    group: &dyn Group<Cpu>,
    dtype: DType,
    values: &[i64],
    placement: Placement,
) -> Tensor<Cpu> {
    let placed = group.axes().iter().fold(Placements::REPLICATED, |p, a| p.with(*a, placement));
    let shape = Shape::vector(values.len());
    let mut t = Tensor::new(device, shape, dtype, placed, Category::Communication).unwrap();
    let bytes: Vec<u8> = match dtype {
        DType::F32 => values.iter().flat_map(|v| (*v as f32).to_le_bytes()).collect(),
        DType::BF16 => values.iter().flat_map(|v| bf16::from_f32(*v as f32).to_le_bytes()).collect(),
        DType::I32 => values.iter().flat_map(|v| (*v as i32).to_le_bytes()).collect(),
        DType::I64 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        DType::U8 => values.iter().map(|v| *v as u8).collect(),
    };
    device.write(t.view_mut().slice, &bytes);
    t
}

pub fn values(device: &Cpu, t: &Tensor<Cpu>) -> Vec<i64> {
    let size = t.dtype().bytes();
    let mut bytes = vec![0u8; t.shape().len() * size];
    device.read(t.view().slice, &mut bytes);
    let value = |c: &[u8]| match t.dtype() {
        DType::F32 => f32::from_le_bytes(c.try_into().unwrap()) as i64,
        DType::BF16 => bf16::from_le_bytes(c.try_into().unwrap()).wide() as i64,
        DType::I32 => i64::from(i32::from_le_bytes(c.try_into().unwrap())),
        DType::I64 => i64::from_le_bytes(c.try_into().unwrap()),
        DType::U8 => i64::from(c[0] as i8),
    };
    bytes.chunks_exact(size).map(value).collect()
}
