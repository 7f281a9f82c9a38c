//! A request or more for each API, and the rights that it asks for.

mod admin;
mod configs;
mod groups;
mod records;
mod share_groups;
mod topics;
mod transactions;

use super::Case;

pub(super) fn all() -> Vec<Case> {
    [
        records::cases(),
        topics::cases(),
        groups::cases(),
        share_groups::cases(),
        transactions::cases(),
        configs::cases(),
        admin::cases(),
    ]
    .into_iter()
    .flatten()
    .collect()
}
