//! How a rate is divided: fair by max-min, with a floor for each. Pure.

/// Divides `per_second` among those who need this much each. Each has `floor` at least, as far as the rate goes;
/// the rest fills the smallest needs first; and what nobody needs goes to all in proportion to their needs, so that
/// the shares add up to the rate.
pub fn fill(per_second: f64, floor: f64, demands: &[f64]) -> Vec<f64> {
    if demands.is_empty() {
        return Vec::new();
    }
    let count = demands.len() as f64;
    let floor = floor.min(per_second / count);
    let mut left = per_second - floor * count;
    let needs: Vec<f64> = demands.iter().map(|demand| (demand - floor).max(0.0)).collect();
    let mut by_need: Vec<usize> = (0..needs.len()).collect();
    by_need.sort_by(|one, other| need(&needs, *one).total_cmp(&need(&needs, *other)));
    let mut shares = vec![floor; needs.len()];
    let mut waiting = count;
    for index in by_need {
        let given = need(&needs, index).min(left / waiting);
        if let Some(share) = shares.get_mut(index) {
            *share += given;
        }
        left -= given;
        waiting -= 1.0;
    }
    let sum: f64 = demands.iter().sum();
    let left = left.max(0.0);
    for (share, demand) in shares.iter_mut().zip(demands) {
        *share += if sum > 0.0 { left * demand / sum } else { left / count };
    }
    shares
}

fn need(needs: &[f64], index: usize) -> f64 {
    needs.get(index).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn who_needs_little_has_it_and_the_others_share_the_rest() {
        assert_eq!(fill(100.0, 0.0, &[10.0, 200.0, 300.0]), [10.0, 45.0, 45.0]);
        assert_eq!(fill(100.0, 5.0, &[0.0, 500.0]), [5.0, 95.0]);
    }

    #[test]
    fn what_nobody_needs_goes_to_those_who_need_most() {
        assert_eq!(fill(100.0, 0.0, &[10.0, 30.0]), [25.0, 75.0]);
        assert_eq!(fill(100.0, 1.0, &[0.0, 0.0]), [50.0, 50.0]);
        assert_eq!(fill(100.0, 1.0, &[]), [0.0; 0]);
    }

    proptest! {
        #[test]
        fn the_shares_are_the_rate_and_fair(
            per_second in 1.0f64..1e9,
            demands in prop::collection::vec(prop_oneof![Just(0.0), 0.0f64..1e9], 1..12),
        ) {
            let floor = per_second / 20.0 / demands.len() as f64;
            let shares = fill(per_second, floor, &demands);
            let sum: f64 = shares.iter().sum();
            prop_assert!((sum - per_second).abs() <= per_second * 1e-9);
            for (share, demand) in shares.iter().zip(&demands) {
                prop_assert!(*share >= floor * 0.999_999);
                for (other, other_demand) in shares.iter().zip(&demands) {
                    // Nobody lacks what another has more of.
                    let lacks = share + per_second * 1e-9 < *demand;
                    prop_assert!(!lacks || *other <= share * 1.000_001 + floor, "{demand} {other_demand}");
                }
            }
        }
    }
}
