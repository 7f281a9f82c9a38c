//! The rule that a test build breaks.

use meridian_storage::mutation::Mutations;

/// The mutation that the environment names: only in a build with the `mutations` feature.
///
/// # Panics
/// If it names none that exists: a test that breaks nothing would prove nothing.
#[cfg(feature = "mutations")]
pub fn active() -> Mutations {
    use meridian_storage::mutation::Mutation;
    let Ok(name) = std::env::var("MERIDIAN_MUTATION") else { return Mutations::NONE };
    let found = Mutation::of_name(&name);
    assert!(found.is_some(), "MERIDIAN_MUTATION={name}: there is no such mutation");
    tracing::warn!(name, "this node breaks a rule on purpose");
    Mutations(found)
}

/// Every rule holds.
#[cfg(not(feature = "mutations"))]
pub fn active() -> Mutations {
    Mutations::NONE
}
