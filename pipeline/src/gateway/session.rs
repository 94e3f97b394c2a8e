//! Which conversation a request belongs to, told from the request alone (SPEC A1, D4).
//!
//! The OpenAI protocol has no session id, and a client sends the whole conversation each time. So the key of a chat is the
//! hash (XXH3-64) of tenant, `user` field, and all messages up to and with the user's first: these stay while a
//! conversation goes on, and two conversations with one system prompt differ in the user's first message. Block hashes
//! would not do: the first block is often the system prompt alone, and the last one is new with every turn. Completions
//! have no turns: their key is the `user` field where there is one, else they belong to no known session.
//!
//! Invariant: the same conversation of the same tenant has the same key at every turn; tenants never share one. Two
//! conversations of one tenant and user that open with the same words count as one. Cost: linear in the opening. No state.

use xxhash_rust::xxh3::Xxh3;

use super::{conversation::Conversation, deps::Role};

/// Key of a chat within its tenant.
pub fn of_chat(user: Option<&str>, conversation: &Conversation) -> Option<u64> {
    let first = conversation.turns.iter().position(|turn| turn.message.role == Role::User)?;
    let mut hash = Xxh3::new();
    put(&mut hash, user.unwrap_or_default());
    for turn in &conversation.turns[..=first] {
        hash.update(&[turn.message.role as u8]);
        put(&mut hash, &turn.message.content);
    }
    Some(hash.digest())
}

/// Key of a completion within its tenant.
pub fn of_completion(user: Option<&str>) -> Option<u64> {
    let mut hash = Xxh3::new();
    put(&mut hash, user.filter(|user| !user.is_empty())?);
    Some(hash.digest())
}

/// The key over all tenants.
pub fn of_tenant(tenant: &str, session: u64) -> u64 {
    let mut hash = Xxh3::with_seed(session);
    put(&mut hash, tenant);
    hash.digest()
}

/// Lengths keep neighbours apart.
fn put(hash: &mut Xxh3, text: &str) {
    hash.update(&(text.len() as u64).to_le_bytes());
    hash.update(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::{super::deps::ChatMessage, *};

    fn chat(messages: &[(Role, &str)]) -> Conversation {
        let messages: Vec<_> =
            messages.iter().map(|(role, content)| ChatMessage { role: *role, content: content.to_string() }).collect();
        messages.as_slice().into()
    }

    /// Scenario: a conversation at its first and at its third turn, others with the same system prompt, another user,
    /// another tenant, and a chat in which the user says nothing.
    /// Guarantees: turns of one conversation share a key, and nothing else does; without a user's message there is none.
    #[test]
    fn turns_of_a_conversation_share_a_key() {
        use Role::{Assistant, System, User};
        let first = chat(&[(System, "be kind"), (User, "hello")]);
        let later = chat(&[(System, "be kind"), (User, "hello"), (Assistant, "hi"), (User, "and now?")]);
        let other = chat(&[(System, "be kind"), (User, "hello!")]);
        let key = of_chat(None, &first).unwrap();
        assert_eq!(of_chat(None, &later), Some(key));
        assert_ne!(of_chat(None, &other), Some(key));
        assert_ne!(of_chat(Some("ann"), &first), Some(key));
        assert_ne!(of_tenant("a", key), of_tenant("b", key));
        assert_eq!(of_chat(None, &chat(&[(System, "be kind")])), None);
        assert_eq!((of_completion(None), of_completion(Some(""))), (None, None));
        assert_eq!(of_completion(Some("ann")), of_completion(Some("ann")));
    }
}
