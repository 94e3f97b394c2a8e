//! The few pieces of GGUF that test models are written with. Invariant: `count` is the number of keys in `bytes`.

/// A header in the making, or a file.
#[derive(Default)]
pub(super) struct Writer {
    pub(super) bytes: Vec<u8>,
    /// Keys written.
    pub(super) count: u64,
}

impl Writer {
    pub(super) fn u32(&mut self, value: u32) {
        self.bytes.extend(value.to_le_bytes());
    }

    pub(super) fn u64(&mut self, value: u64) {
        self.bytes.extend(value.to_le_bytes());
    }

    pub(super) fn text(&mut self, text: &str) {
        self.u64(text.len() as u64);
        self.bytes.extend(text.as_bytes());
    }

    pub(super) fn key(&mut self, name: &str, type_id: u32) {
        self.count += 1;
        self.text(name);
        self.u32(type_id);
    }

    pub(super) fn key_text(&mut self, name: &str, text: &str) {
        self.key(name, 8);
        self.text(text);
    }

    pub(super) fn key_u32(&mut self, name: &str, value: usize) {
        self.key(name, 4);
        self.u32(value as u32);
    }

    pub(super) fn key_f32(&mut self, name: &str, value: f32) {
        self.key(name, 6);
        self.bytes.extend(value.to_le_bytes());
    }

    pub(super) fn key_texts<'a>(&mut self, name: &str, texts: impl ExactSizeIterator<Item = &'a str>) {
        self.key(name, 9);
        self.u32(8);
        self.u64(texts.len() as u64);
        texts.for_each(|text| self.text(text));
    }

    pub(super) fn key_flag(&mut self, name: &str, value: Flag) {
        self.key(name, 7);
        self.bytes.push(u8::from(value == Flag::Yes));
    }

    pub(super) fn key_u32s(&mut self, name: &str, values: &[u32]) {
        self.array(name, 5, values.len());
        values.iter().for_each(|value| self.u32(*value));
    }

    pub(super) fn key_f32s(&mut self, name: &str, values: &[f32]) {
        self.array(name, 6, values.len());
        values.iter().for_each(|value| self.bytes.extend(value.to_le_bytes()));
    }

    fn array(&mut self, name: &str, type_id: u32, len: usize) {
        self.key(name, 9);
        self.u32(type_id);
        self.u64(len as u64);
    }
}

/// A truth value, by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flag {
    Yes,
    No,
}
