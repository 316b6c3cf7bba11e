//! Elementary functions as fixed polynomials, so that a result never depends on the system's libm.
//!
//! [`exp`] has no branch, so a loop over it becomes vector code; its bits are the same with and without SIMD.
//! The double-precision ones serve tables and random numbers, where speed does not matter.

use std::f64::consts::{FRAC_PI_2, LN_2, PI};

/// e^x in single precision, right to an ulp where the result is a normal number; 0 below -87.7, infinity above 88.37,
/// NaN stays NaN.
///
/// Range reduction x = n ln 2 + r with |r| <= ln 2 / 2 (Cody and Waite) and a polynomial of degree 6 in r, whose largest
/// relative error, 3e-9, is the smallest that one beginning with 1 + r can have.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    const LOG2_E: f32 = std::f32::consts::LOG2_E;
    // ln 2 in two parts: the high one has few bits, so that n * LN2_HI is exact.
    const LN2_HI: f32 = 0.693_359_4;
    const LN2_LO: f32 = -2.121_944_4e-4;
    // Adding 1.5 * 2^23 rounds to the nearest integer, which is then in the low bits of the sum.
    const ROUND: f32 = 12_582_912.0;
    // Beyond these n is -127 or 128, whose exponent bits are those of zero and infinity.
    let y = if x > 88.7 { 88.7 } else { x };
    let y = if y < -88.0 { -88.0 } else { y };
    let shifted = y.mul_add(LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-LN2_LO, n.mul_add(-LN2_HI, y));
    let p = 1.381_454e-3_f32;
    let p = p.mul_add(r, 8.368_745e-3);
    let p = p.mul_add(r, 4.166_839e-2);
    let p = p.mul_add(r, 1.666_652e-1);
    let p = p.mul_add(r, 4.999_999_3e-1);
    let p = p.mul_add(r, 1.0);
    let p = p.mul_add(r, 1.0);
    // The shift leaves n + 127 alone. Converting n to an integer would saturate, which is no vector instruction.
    p * f32::from_bits(shifted.to_bits().wrapping_add(127) << 23)
}

/// Natural logarithm of a positive number, relative error below 1e-15.
///
/// x = m 2^k with m in [sqrt 1/2, sqrt 2); ln m = 2 artanh((m-1)/(m+1)) as a series.
pub fn ln(x: f64) -> f64 {
    if x.is_nan() || x < 0.0 {
        return f64::NAN;
    }
    if x == 0.0 {
        return f64::NEG_INFINITY;
    }
    if x.is_infinite() {
        return x;
    }
    // Subnormals have no implicit one: scale them up first.
    let (x, shift) = if x < f64::MIN_POSITIVE { (x * 2f64.powi(54), -54) } else { (x, 0) };
    let bits = x.to_bits();
    let mut k = ((bits >> 52) as i32) - 1023 + shift;
    let mut m = f64::from_bits((bits & 0x000f_ffff_ffff_ffff) | 0x3ff0_0000_0000_0000);
    if m > std::f64::consts::SQRT_2 {
        m *= 0.5;
        k += 1;
    }
    let s = (m - 1.0) / (m + 1.0);
    let s2 = s * s;
    let mut sum = 0.0;
    for i in (0..14).rev() {
        sum = sum * s2 + 1.0 / f64::from(2 * i + 1);
    }
    2.0 * s * sum + f64::from(k) * LN_2
}

/// e^x in double precision, relative error below 1e-15.
pub fn exp_f64(x: f64) -> f64 {
    if x.is_nan() {
        return x;
    }
    if x > 709.7 {
        return f64::INFINITY;
    }
    if x < -745.0 {
        return 0.0;
    }
    const LN2_HI: f64 = 6.931_471_803_691_238e-1;
    const LN2_LO: f64 = 1.908_214_929_270_587_7e-10;
    let n = (x / LN_2).round();
    let r = (x - n * LN2_HI) - n * LN2_LO;
    let mut sum = 1.0;
    for i in (1..=18).rev() {
        sum = 1.0 + sum * r / f64::from(i);
    }
    // Two factors, so that results below the normal range stay right.
    let half = (n / 2.0).floor();
    sum * 2f64.powi(half as i32) * 2f64.powi((n - half) as i32)
}

/// (sin x, cos x), absolute error below 1e-15 for |x| < 1e6.
pub fn sin_cos(x: f64) -> (f64, f64) {
    // pi/2 in two parts keeps the reduction exact for the positions a model can have.
    const PIO2_LO: f64 = 6.123_233_995_736_766e-17;
    let n = (x / FRAC_PI_2).round();
    let r = (-n).mul_add(PIO2_LO, (-n).mul_add(FRAC_PI_2, x));
    let r2 = r * r;
    let (mut s, mut c) = (0.0, 0.0);
    for i in (0..11).rev() {
        let a = f64::from(2 * i + 1);
        s = 1.0 - s * r2 / ((a + 1.0) * (a + 2.0));
        c = 1.0 - c * r2 / (a * (a + 1.0));
    }
    let (s, c) = (s * r, c);
    match (n as i64).rem_euclid(4) {
        0 => (s, c),
        1 => (c, -s),
        2 => (-s, -c),
        _ => (-c, s),
    }
}

/// cos(pi x), for schedules.
pub fn cos_pi(x: f64) -> f64 {
    sin_cos(PI * x).1
}

/// b^p for b > 0.
pub fn powf(b: f64, p: f64) -> f64 {
    exp_f64(p * ln(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The reference is the platform's libm, which is right to an ulp.
    #[test]
    fn agrees_with_libm() {
        for i in -20_000..20_000 {
            let x = f64::from(i) * 0.004_36;
            let e = exp(x as f32);
            let want = f64::from(x as f32).exp();
            assert!((f64::from(e) - want).abs() <= 1e-7 * want, "exp({x}) = {e}, want {want}");
            assert!((exp_f64(x) / x.exp() - 1.0).abs() < 2e-15, "exp_f64({x})");
            let (s, c) = sin_cos(x * 37.0);
            assert!(
                (s - (x * 37.0).sin()).abs() < 1e-14 && (c - (x * 37.0).cos()).abs() < 1e-14,
                "sin_cos {x}"
            );
            if x > 0.0 {
                assert!((ln(x) - x.ln()).abs() <= 2e-15 * (1.0 + x.ln().abs()), "ln({x})");
            }
        }
    }

    #[test]
    fn limits() {
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert!(exp(f32::NAN).is_nan());
        assert_eq!((exp(-87.7), exp(88.38)), (0.0, f32::INFINITY));
        assert!(exp(-87.3) >= f32::MIN_POSITIVE && exp(88.37) > 2.3e38);
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(ln(0.0), f64::NEG_INFINITY);
        assert!((ln(5e-324) - 5e-324f64.ln()).abs() < 1e-12);
    }
}
