//! Instruction families: each kernel is written once and compiled for each of them.
//!
//! A kernel's source fixes its arithmetic (fused multiply-adds, order of sums), and the compiler may not
//! change it; so all families give the same bits, and a wider one is only faster.

/// A set of vector instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// AVX-512 F, VL, BW, DQ.
    Avx512,
    /// AVX2 and FMA.
    Avx2,
    /// What every machine of this architecture has.
    Portable,
}

impl Family {
    /// All families, fastest first.
    pub const ALL: [Family; 3] = [Family::Avx512, Family::Avx2, Family::Portable];

    /// Whether this machine has it.
    pub fn available(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return match self {
            Family::Avx512 => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("fma")
            }
            Family::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
            Family::Portable => true,
        };
        #[cfg(not(target_arch = "x86_64"))]
        return self == Family::Portable;
    }

    /// The first that this machine has.
    pub fn detect() -> Self {
        Self::ALL.into_iter().find(|f| f.available()).unwrap_or(Family::Portable)
    }
}

/// Defines a kernel: a function whose first argument is a [`Family`], and whose body is compiled for each. It may be
/// generic over types of elements. Everything that the body calls must be `#[inline(always)]`, or it would be
/// compiled without the family's instructions.
macro_rules! kernel {
    ($(#[$meta:meta])* $vis:vis fn $name:ident $(<$($t:ident: $bound:path),+>)? ($($arg:ident: $type:ty),* $(,)?) $body:block) => {
        $(#[$meta])*
        $vis fn $name $(<$($t: $bound),+>)? (family: $crate::cpu::Family, $($arg: $type),*) {
            #[inline(always)]
            fn body $(<$($t: $bound),+>)? ($($arg: $type),*) $body

            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma")]
                fn avx512 $(<$($t: $bound),+>)? ($($arg: $type),*) { body($($arg),*) }
                #[target_feature(enable = "avx2,fma")]
                fn avx2 $(<$($t: $bound),+>)? ($($arg: $type),*) { body($($arg),*) }
                match family {
                    // SAFETY: a device is only made for a family that the machine has.
                    $crate::cpu::Family::Avx512 => return unsafe { avx512($($arg),*) },
                    // SAFETY: as above.
                    $crate::cpu::Family::Avx2 => return unsafe { avx2($($arg),*) },
                    $crate::cpu::Family::Portable => {}
                }
            }
            #[cfg(not(target_arch = "x86_64"))]
            let _ = family;
            body($($arg),*)
        }
    };
}
pub(super) use kernel;

/// Evaluates an expression with `T` as the type of a buffer's elements, f32 or bf16.
macro_rules! for_float {
    ($slice:expr, $t:ident => $body:expr) => {
        match $slice.dtype() {
            $crate::DType::BF16 => {
                type $t = $crate::bf16;
                $body
            }
            _ => {
                type $t = f32;
                $body
            }
        }
    };
}
pub(super) use for_float;
