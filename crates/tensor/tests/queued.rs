//! The queued device: a sound program has the CPU's bits and account, and each kind of mistake is found.

mod common;

use common::*;
use memwall_layout::Placements;
use memwall_tensor::device::{Device, Epilogue, MatmulDims, MatmulLayout, Memory, Pointwise};
use memwall_tensor::queued::{Agent, Fault, Queue, Queued, QueuedBuf};
use memwall_tensor::{
    Category, DType, Description, Event, Ledger, OutOfMemory, Shape, Slice, SliceMut, Tensor,
};
use proptest::prelude::*;

fn queued(seed: u64) -> Queued {
    Queued::new(Description { threads: 2 }, BUDGET, seed).unwrap()
}

fn zeros<D: Memory>(device: &D, n: usize) -> Tensor<D> {
    let mut t =
        Tensor::new(device, Shape::vector(n), DType::F32, Placements::REPLICATED, Category::Activations)
            .unwrap();
    device.zero(t.view_mut().slice);
    t
}

/// A random program of allocations, operations and drops; the bits of what is left, and the account's events.
fn random_program<D: Device>(device: &D, acts: &[(u8, usize)], seed: u64) -> (Vec<u32>, Vec<Event>) {
    const SIDE: usize = 24;
    device.ledger().record();
    let mut s = Stream::new(seed);
    let mut live: Vec<Tensor<D>> = Vec::new();
    for (act, at) in acts {
        if live.len() < 2 || act % 5 == 0 {
            live.push(matrix(device, SIDE, &s.floats(SIDE * SIDE, 1.0)));
            continue;
        }
        let other = live.swap_remove(at % live.len());
        let into = at % live.len();
        match act % 5 {
            1 => device.add(live[into].view_mut().slice, other.view().slice),
            2 => {
                let dims = MatmulDims { m: SIDE, n: SIDE, k: SIDE };
                let product = zeros(device, SIDE * SIDE);
                let mut product = product.in_rows_of(SIDE);
                let (a, b) = (live[into].view().slice, other.view().slice);
                device.matmul(MatmulLayout::Nt, dims, a, b, product.view_mut().slice, Epilogue::store());
                live[into] = product;
            }
            3 => device.gelu(other.view().slice, live[into].view_mut().slice),
            _ => device.accumulate(other.view().slice, live[into].view_mut().slice, false),
        }
        // Given back while operations that use it may not have begun.
        drop(other);
    }
    let values = live.iter().flat_map(|t| floats(device, t)).map(f32::to_bits).collect();
    drop(live);
    (values, device.ledger().recorded())
}

proptest! {
    #![proptest_config(cases(48))]

    #[test]
    fn a_sound_program_has_the_cpus_bits_and_events(
        acts in prop::collection::vec((any::<u8>(), 0usize..64), 1..40), seed: u64,
    ) {
        let on_cpu = random_program(&cpu(2), &acts, seed);
        let on_dry = random_program(&dry(2), &acts, seed).1;
        for pauses in [seed, !seed] {
            let device = queued(pauses);
            let on_queues = random_program(&device, &acts, seed);
            prop_assert!(on_queues == on_cpu);
            prop_assert_eq!(&on_queues.1, &on_dry);
            prop_assert_eq!(device.faults(), []);
        }
    }
}

/// What a device's user may forget in a collective on the communication queue.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Forgotten {
    Nothing,
    /// To let the collective wait for what it sends.
    Before,
    /// To let the next operation wait for the collective.
    After,
    /// To keep the buffer until the collective is over.
    Buffer,
    /// To issue on the other queue at all, for one of two operations.
    Queue,
}

/// Doubles `n` ones on the compute queue, moves them on the other, and adds one behind.
fn collective(device: &Queued, forgotten: Forgotten, n: usize) -> Tensor<Queued> {
    let communication = device.on(Queue::Communication);
    let (mut x, mut y, ones) = (zeros(device, n), zeros(device, n), vector(device, &vec![1f32; n]));
    device.fill(x.view_mut().slice, 2.0);
    if forgotten != Forgotten::Before {
        communication.wait_for(&device.mark());
    }
    communication.copy(x.view().slice, y.view_mut().slice);
    if forgotten == Forgotten::Queue {
        device.zero(x.view_mut().slice);
    }
    if forgotten == Forgotten::Buffer {
        drop(x);
        device.wait_for(&communication.mark());
    } else {
        if forgotten != Forgotten::After {
            device.wait_for(&communication.mark());
        }
        drop(x);
    }
    device.add(y.view_mut().slice, ones.view().slice);
    y
}

/// Whether a fault is a race of these two operations.
fn is_race(fault: &Fault, of: (&str, Queue), with: (&str, Queue)) -> bool {
    matches!(fault, Fault::Race { operation, agent, other, other_agent }
        if (*operation, *agent) == (of.0, Agent::Queue(of.1)) && (*other, *other_agent) == (with.0, Agent::Queue(with.1)))
}

#[test]
fn every_forgotten_event_is_found_and_a_sound_collective_is_not_blamed() {
    use Queue::{Communication, Compute};
    for seed in 0..20 {
        for (forgotten, race) in [
            (Forgotten::Nothing, None),
            (Forgotten::Before, Some((("copy", Communication), ("fill", Compute)))),
            (Forgotten::After, Some((("add", Compute), ("copy", Communication)))),
            (Forgotten::Buffer, Some((("giving back", Compute), ("copy", Communication)))),
            (Forgotten::Queue, Some((("zero", Compute), ("copy", Communication)))),
        ] {
            let device = queued(seed);
            let y = collective(&device, forgotten, 1000);
            let faults = device.faults();
            match race {
                None => {
                    assert_eq!(faults, []);
                    assert_eq!(floats(&device, &y), [3f32; 1000]);
                }
                Some((of, with)) => {
                    assert!(faults.iter().any(|f| is_race(f, of, with)), "{forgotten:?}: {faults:?}");
                }
            }
            drop(y);
            device.faults();
        }
    }
}

#[test]
fn a_buffer_that_is_given_back_before_its_use_is_missed() {
    let missed = (0..1000).any(|seed| {
        let device = queued(seed);
        let communication = device.on(Queue::Communication);
        let (x, mut y) = (zeros(&device, 64), zeros(&device, 64));
        // Both queues go on from here: most times the first comes first, and takes the buffer away.
        communication.wait_for(&device.mark());
        communication.copy(x.view().slice, y.view_mut().slice);
        drop(x);
        let faults = device.faults();
        let race = is_race(&faults[0], ("giving back", Queue::Compute), ("copy", Queue::Communication));
        assert!(race, "whoever came first: {faults:?}");
        device.wait_for(&communication.mark());
        let agent = Agent::Queue(Queue::Communication);
        faults.contains(&Fault::GivenBack { operation: "copy", agent })
    });
    assert!(missed);
}

/// A device whose user reads without waiting.
#[derive(Debug)]
struct Hasty(Queued);

impl Memory for Hasty {
    type Buf = QueuedBuf;

    fn alloc(&self, len: usize, dtype: DType, category: Category) -> Result<QueuedBuf, OutOfMemory> {
        self.0.alloc(len, dtype, category)
    }
    fn ledger(&self) -> &Ledger {
        self.0.ledger()
    }
    fn description(&self) -> Description {
        self.0.description()
    }
    fn write(&self, dst: SliceMut<'_, QueuedBuf>, bytes: &[u8]) {
        self.0.write(dst, bytes);
    }
    fn read(&self, src: Slice<'_, QueuedBuf>, bytes: &mut [u8]) {
        self.0.peek(src, bytes);
    }
    fn copy(&self, src: Slice<'_, QueuedBuf>, dst: SliceMut<'_, QueuedBuf>) {
        self.0.copy(src, dst);
    }
    fn cast(&self, src: Slice<'_, QueuedBuf>, dst: SliceMut<'_, QueuedBuf>) {
        self.0.cast(src, dst);
    }
    fn zero(&self, dst: SliceMut<'_, QueuedBuf>) {
        self.0.zero(dst);
    }
    fn fill(&self, dst: SliceMut<'_, QueuedBuf>, value: f32) {
        self.0.fill(dst, value);
    }
    fn fill_normal(&self, dst: SliceMut<'_, QueuedBuf>, key: u64, first: u64, std: f64) {
        self.0.fill_normal(dst, key, first, std);
    }
}

/// Fills, copies and reads.
fn filled_and_read<D: Memory>(device: &D) -> Vec<f32> {
    let (mut x, mut y) = (zeros(device, 300), zeros(device, 300));
    device.fill(x.view_mut().slice, 0.5);
    device.copy(x.view().slice, y.view_mut().slice);
    floats(device, &y)
}

#[test]
fn a_device_that_reads_without_waiting_is_found_and_one_that_waits_is_not() {
    let sound = queued(3);
    assert_eq!(filled_and_read(&sound), [0.5; 300]);
    assert_eq!((sound.faults(), sound.waits()), (vec![], 2));
    let hasty = Hasty(queued(3));
    // Nothing is carried out before the read: what it sees is not there.
    let held = hasty.0.hold();
    assert!(filled_and_read(&hasty).iter().all(|x| x.is_nan()));
    drop(held);
    filled_and_read(&hasty);
    let faults = hasty.0.faults();
    let race = |f: &Fault| {
        matches!(f, Fault::Race { operation: "peek", agent: Agent::Host, other: "copy", .. })
            && f.to_string().starts_with("peek on the host may run before copy on the compute queue is done")
    };
    assert!(faults.len() == 2 && faults.iter().all(race), "{faults:?}");
}

#[test]
fn the_host_may_read_what_it_waited_for_while_the_rest_goes_on() {
    let device = queued(4);
    let (mut x, mut y) = (zeros(&device, 100), zeros(&device, 100));
    device.fill(x.view_mut().slice, 7.0);
    let marker = device.mark();
    device.host_waits_for(&marker);
    let held = device.hold();
    device.copy(x.view().slice, y.view_mut().slice);
    let mut seen = [0f32; 100];
    device.peek(x.view().slice, bytemuck::cast_slice_mut(&mut seen));
    assert_eq!(seen, [7.0; 100]);
    drop(held);
    assert_eq!(floats(&device, &y), [7.0; 100]);
    assert_eq!(device.faults(), []);
}

#[test]
fn the_hosts_bytes_are_copied_when_a_write_is_issued() {
    let device = queued(5);
    let mut x = zeros(&device, 16);
    let held = device.hold();
    let mut bytes = [1f32; 16];
    device.write(x.view_mut().slice, bytemuck::cast_slice(&bytes));
    bytes.fill(2.0);
    device.write(x.view_mut().slice.part(0, 8), bytemuck::cast_slice(&bytes[..8]));
    bytes.fill(3.0);
    drop(held);
    assert_eq!(floats(&device, &x), [[2f32; 8], [1.0; 8]].concat());
}

#[test]
fn memory_that_was_not_written_is_not_a_number_even_where_other_numbers_lay() {
    let device = queued(6);
    drop(vector(&device, &[1f32; 64]));
    let new =
        Tensor::new(&device, Shape::vector(64), DType::F32, Placements::REPLICATED, Category::Activations)
            .unwrap();
    assert!(floats(&device, &new).iter().all(|x| x.is_nan()));
}

#[test]
fn a_kernel_that_panics_is_a_fault_of_its_name_and_the_queue_goes_on() {
    let device = queued(7);
    let (ids, table) = (vector(&device, &[99i32]), zeros(&device, 8));
    let mut row = zeros(&device, 4);
    device.embedding(ids.view().slice, table.view().slice, 4, row.view_mut().slice, false);
    let faults = device.faults();
    assert!(matches!(&faults[..], [Fault::Panicked { operation: "embedding", .. }]), "{faults:?}");
    device.fill(row.view_mut().slice, 1.0);
    assert_eq!(floats(&device, &row), [1.0; 4]);
}

#[test]
#[should_panic(expected = "faults that nobody asked for")]
fn faults_that_nobody_asked_for_fail_the_test_that_made_them() {
    let device = queued(8);
    let x = zeros(&device, 8);
    let mut seen = [0f32; 8];
    let held = device.hold();
    device.peek(x.view().slice, bytemuck::cast_slice_mut(&mut seen));
    drop(held);
}

#[test]
fn a_buffer_outlives_its_device() {
    let device = queued(9);
    let ledger = device.ledger().clone();
    let x = zeros(&device, 64);
    drop(device);
    assert_eq!(ledger.state().live.total(), 256);
    drop(x);
    assert_eq!(ledger.state().live.total(), 0);
}
