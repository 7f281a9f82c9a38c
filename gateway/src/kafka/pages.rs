//! Who may read the operators' HTTP pages: users who may call the methods that the pages show.

use std::fmt;
use std::net::SocketAddr;

use super::dispatch::Client;
use super::session::Session;
use super::{Front, access, login};

/// A user and its password, as HTTP has them (RFC 7617).
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct BasicLogin {
    pub(crate) user: String,
    pub(crate) password: String,
}

/// Without the password.
impl fmt::Debug for BasicLogin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "claims to be {}", self.user)
    }
}

/// Whether somebody may read a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    Admitted,
    /// Nobody who does not say who it is may, or the password is wrong.
    LoginNeeded,
    /// This user may not.
    Denied(String),
    /// This node may not know which rights were taken away.
    Uncertain,
}

impl Front {
    /// Whether a reader may call a method that is about the cluster. With `always` nobody may without a login, whatever
    /// the access rules say.
    pub(crate) async fn admit_reader(
        &self,
        peer: SocketAddr,
        login: Option<&BasicLogin>,
        always: bool,
        method: &str,
    ) -> Admission {
        let session = match login {
            None if always => return Admission::LoginNeeded,
            None => Session::anonymous(peer),
            Some(BasicLogin { user, password }) => {
                let Some(session) = login::by_password(self, peer, user, password).await else {
                    return Admission::LoginNeeded;
                };
                session
            }
        };
        let client = Client::new(peer, self.memory.holder(), session);
        let rights = access::rights_of(self, &client);
        if self.may_be_wrong(&rights) {
            return Admission::Uncertain;
        }
        match (access::may_call(&rights, method), login) {
            (true, _) => Admission::Admitted,
            (false, None) => Admission::LoginNeeded,
            (false, Some(_)) => Admission::Denied(client.session.principal.to_string()),
        }
    }
}
