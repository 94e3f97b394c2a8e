//! Names and literals as PostgreSQL quotes them, takes them apart, and puts them into texts.
//!
//! Cost: O(length of the text).

pub(super) fn quote_ident(name: &str) -> String {
    let plain = name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    if plain { name.to_string() } else { format!("\"{}\"", name.replace('"', "\"\"")) }
}

/// Parts of a dotted name: quoted ones as they are, others in lower case.
pub(super) fn parse_ident(name: &str) -> Vec<String> {
    let (mut parts, mut part, mut quoted) = (Vec::new(), String::new(), false);
    for c in name.chars() {
        match c {
            '"' => quoted = !quoted,
            '.' if !quoted => parts.push(std::mem::take(&mut part)),
            c if quoted => part.push(c),
            c => part.push(c.to_ascii_lowercase()),
        }
    }
    parts.push(part);
    parts
}

pub(super) fn quote_literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// `format('%I.%s', …)`: `%s` as it is, `%I` as a name, `%L` as a literal, `%%`; `%2$s` takes the second value.
///
/// Errors: what is wrong, in words.
pub(super) fn format(format: &str, values: &[Option<&str>]) -> Result<String, String> {
    let (mut made, mut at, mut letters) = (String::new(), 0, format.chars());
    while let Some(letter) = letters.next() {
        if letter != '%' {
            made.push(letter);
            continue;
        }
        let number: String = letters.clone().take_while(char::is_ascii_digit).collect();
        if !number.is_empty() && letters.clone().nth(number.len()) == Some('$') {
            letters.nth(number.len());
            at = number.parse::<usize>().ok().and_then(|number| number.checked_sub(1)).unwrap_or(usize::MAX);
        }
        let kind = letters.next();
        if kind == Some('%') {
            made.push('%');
            continue;
        }
        let value = *values.get(at).ok_or("too few arguments for format()")?;
        at = at.saturating_add(1);
        match (kind, value) {
            (Some('s'), value) => made.push_str(value.unwrap_or_default()),
            (Some('I'), Some(name)) => made.push_str(&quote_ident(name)),
            (Some('I'), None) => return Err("null values cannot be formatted as an SQL identifier".into()),
            (Some('L'), value) => made.push_str(&value.map_or_else(|| "NULL".to_string(), quote_literal)),
            _ => return Err("format() knows %s, %I, %L and %%".into()),
        }
    }
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::format;

    /// Scenario: each kind of place, in order and by number, and places that are wrong. Guarantees: values come quoted as their place
    /// says; a wrong place is told.
    #[test]
    fn values_come_into_texts() {
        let values = [Some("Public"), Some("it's"), None];
        assert_eq!(format("%I.%s %% %L", &values).unwrap(), "\"Public\".it's % NULL");
        assert_eq!(format("%2$L %1$s %s", &values).unwrap(), "'it''s' Public it's");
        assert!(format("%s %s %s %s", &values).unwrap_err().contains("too few"));
        assert!(format("%3$I", &values).unwrap_err().contains("identifier"));
        assert!(format("%d", &values).unwrap_err().contains("knows"));
        assert!(format("%0$s", &values).unwrap_err().contains("too few"));
        assert!(format("100%", &values).is_err());
    }
}
