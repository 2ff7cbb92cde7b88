//! Allocation, copies and the way between host and device.

use crate::{Category, DType, Description, Float, Ledger, OutOfMemory, Slice, SliceMut, bf16};

/// A device's buffer. What is dropped is free.
pub trait Buffer: Send + Sync + std::fmt::Debug {
    /// Number of elements.
    fn len(&self) -> usize;
    /// Whether there are no elements.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Type of the elements.
    fn dtype(&self) -> DType;

    /// Waits for all that was issued, then copies elements from number `start` on to the host; as many bytes as there is room
    /// for.
    fn read(&self, start: usize, bytes: &mut [u8]);
}

/// Allocation, copies and the way between host and device.
pub trait Memory: Sized + std::fmt::Debug {
    /// The device's buffers.
    type Buf: Buffer;

    /// A new buffer; its contents are unspecified.
    ///
    /// # Errors
    /// [`OutOfMemory`] when the budget does not hold it.
    fn alloc(&self, len: usize, dtype: DType, category: Category) -> Result<Self::Buf, OutOfMemory>;

    /// The device's account.
    fn ledger(&self) -> &Ledger;

    /// What decides the size of the device's own working space.
    fn description(&self) -> Description;

    /// Copies host bytes into `dst`; as many as `dst` has.
    fn write(&self, dst: SliceMut<'_, Self::Buf>, bytes: &[u8]);

    /// Writes f32 rows of `cols` that `row(number, elements)` fills, where there is somewhere to write them to.
    ///
    /// # Panics
    /// When `dst` is not a whole number of rows: a fault of the calling program.
    fn write_rows(
        &self,
        mut dst: SliceMut<'_, Self::Buf>,
        cols: usize,
        row: &mut dyn FnMut(usize, &mut [f32]),
    ) {
        assert_eq!(dst.len() % cols, 0, "{} elements in rows of {cols}", dst.len());
        let mut values = vec![0f32; cols];
        for number in 0..dst.len() / cols {
            row(number, &mut values);
            self.write(dst.reborrow().part(number * cols, cols), bytemuck::cast_slice(&values));
        }
    }

    /// Waits for all that was issued, then copies `src` to the host; as many bytes as `src` has.
    /// Not inside a step: what the host wants to read is awaited at its end.
    fn read(&self, src: Slice<'_, Self::Buf>, bytes: &mut [u8]) {
        src.read(bytes);
    }

    /// Copies elements from buffer to buffer; both have the same length and dtype.
    fn copy(&self, src: Slice<'_, Self::Buf>, dst: SliceMut<'_, Self::Buf>);

    /// Copies floating-point elements, each rounded to the nearest of `dst`'s type.
    fn cast(&self, src: Slice<'_, Self::Buf>, dst: SliceMut<'_, Self::Buf>);

    /// Sets every byte to zero.
    fn zero(&self, dst: SliceMut<'_, Self::Buf>);

    /// Sets every f32 element.
    fn fill(&self, dst: SliceMut<'_, Self::Buf>, value: f32);

    /// Draws f32 elements from a normal distribution: element `i` is a function of `key`, `first + i` and
    /// `std` alone.
    fn fill_normal(&self, dst: SliceMut<'_, Self::Buf>, key: u64, first: u64, std: f64);

    /// Copies floating-point elements into a vector on the host, as f32.
    fn read_f32(&self, src: Slice<'_, Self::Buf>) -> Vec<f32> {
        let mut out = vec![0f32; src.len()];
        self.read_floats(src, &mut out);
        out
    }

    /// Copies floating-point elements to the host, as f32.
    fn read_floats(&self, src: Slice<'_, Self::Buf>, out: &mut [f32]) {
        src.read_floats(out);
    }

    /// Copies f32 elements from the host, each rounded to the nearest of `dst`'s type.
    fn write_floats(&self, dst: SliceMut<'_, Self::Buf>, values: &[f32]) {
        if dst.dtype() != DType::BF16 {
            return self.write(dst, bytemuck::cast_slice(values));
        }
        let low: Vec<bf16> = values.iter().map(|x| bf16::narrow(*x)).collect();
        self.write(dst, bytemuck::cast_slice(&low));
    }
}
