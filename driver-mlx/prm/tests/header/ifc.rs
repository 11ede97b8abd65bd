//! The part of C that the headers are written in: structures and unions of plain integers, arrays
//! of them, and other such structures; and constants. In `mlx5_ifc.h` a member `u8 name[n]` stands
//! for n bits; elsewhere C means what it says.

use std::collections::BTreeMap;

/// A member of a structure or union.
#[derive(Debug, Clone)]
struct Member {
    name: String,
    /// Bits of one element, or the structure that one element is.
    element: Element,
    /// `None` for a plain member, `Some(0)` for an open-ended array.
    count: Option<u64>,
}

#[derive(Debug, Clone)]
enum Element {
    Bits(u64),
    Named(String),
    Inline(Aggregate),
}

/// Meaning of a declaration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// `mlx5_ifc.h`: the last dimension of a `u8` is its width in bits.
    Bits,
    /// Ordinary C: structures without padding, which is checked.
    C,
}

/// A structure or a union.
#[derive(Debug, Clone)]
struct Aggregate {
    union: bool,
    members: Vec<Member>,
}

/// All structures of a header, by name without the prefix (`mlx5_ifc_` or `mlx5_`) and the suffix
/// `_bits`. A structure that uses more of C than this parser supports is stored as its parse error.
#[derive(Debug)]
pub struct Header(BTreeMap<String, Result<Aggregate, String>>);

/// A member as C sees it, embedded structures included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Bits from the start of the outermost structure.
    pub bit_offset: u64,
    /// Bits of the member, of all elements of an array, of one element of an open-ended array.
    pub bit_width: u64,
    /// Returns whether it is a plain integer, not an array or a structure.
    pub scalar: bool,
}

impl Header {
    /// Reads the whole header; what is not a structure of bits (enumerations, macros) is passed
    /// over.
    pub fn parse(text: &str, dialect: Dialect) -> Self {
        let tokens = tokens(text);
        let mut parser = Parser { tokens: &tokens, at: 0, dialect, constants: constants(text) };
        let mut found = BTreeMap::new();
        while let Some(token) = parser.next() {
            let union = token == "union";
            if !union && token != "struct" {
                continue;
            }
            let Some(name) = parser.next().and_then(|name| short_name(name, dialect)) else { continue };
            if parser.peek() != Some("{") {
                continue;
            }
            let aggregate = parser.aggregate(union).map_err(|error| format!("{name}: {error}"));
            found.insert(name, aggregate);
        }
        Self(found)
    }

    /// Returns whether the header has this structure.
    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Every member of `name` by its dotted path below the structure, embedded structures
    /// themselves included; and the size of the structure in bits.
    pub fn members(&self, name: &str) -> Result<(BTreeMap<String, Place>, u64), String> {
        let aggregate = self.find(name)?;
        let mut places = BTreeMap::new();
        self.walk(aggregate, "", 0, &mut places)?;
        Ok((places, self.size(aggregate)?))
    }

    fn find(&self, name: &str) -> Result<&Aggregate, String> {
        self.0.get(name).ok_or_else(|| format!("no structure {name}"))?.as_ref().map_err(Clone::clone)
    }

    fn walk(
        &self,
        aggregate: &Aggregate,
        prefix: &str,
        base: u64,
        places: &mut BTreeMap<String, Place>,
    ) -> Result<(), String> {
        let mut at = base;
        for member in &aggregate.members {
            let one = self.element_size(&member.element)?;
            let total = one * member.count.unwrap_or(1);
            let path = match (prefix, member.name.as_str()) {
                (prefix, "") => prefix.to_owned(),
                ("", name) => name.to_owned(),
                (prefix, name) => format!("{prefix}.{name}"),
            };
            let scalar = matches!(member.element, Element::Bits(_)) && member.count.is_none();
            let bit_width = if member.count == Some(0) { one } else { total };
            if !member.name.is_empty() && !member.name.starts_with("reserved") {
                places.insert(path.clone(), Place { bit_offset: at, bit_width, scalar });
            }
            match &member.element {
                Element::Bits(_) => {}
                Element::Named(name) => {
                    self.walk(self.find(name)?, &path, at, places)?;
                }
                Element::Inline(inner) => self.walk(inner, &path, at, places)?,
            }
            if !aggregate.union {
                at += total;
            }
        }
        Ok(())
    }

    fn size(&self, aggregate: &Aggregate) -> Result<u64, String> {
        let mut size = 0;
        for member in &aggregate.members {
            let total = self.element_size(&member.element)? * member.count.unwrap_or(1);
            size = if aggregate.union { total.max(size) } else { size + total };
        }
        Ok(size)
    }

    fn element_size(&self, element: &Element) -> Result<u64, String> {
        match element {
            Element::Bits(bits) => Ok(*bits),
            Element::Named(name) => self.size(self.find(name)?),
            Element::Inline(inner) => self.size(inner),
        }
    }
}

fn short_name(c_name: &str, dialect: Dialect) -> Option<String> {
    let prefix = if dialect == Dialect::Bits { "mlx5_ifc_" } else { "mlx5_" };
    // `health_buffer` has no prefix in `device.h`.
    let name = c_name.strip_prefix(prefix).or((c_name == "health_buffer").then_some(c_name))?;
    // A few have no suffix.
    Some(name.strip_suffix("_bits").unwrap_or(name).to_owned())
}

/// Words, numbers and punctuation, without comments and preprocessor lines.
pub fn tokens(text: &str) -> Vec<String> {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find("/*") {
        plain.push_str(&rest[..start]);
        plain.push(' ');
        rest = rest[start..].find("*/").map_or("", |end| &rest[start + end + 2..]);
    }
    plain.push_str(rest);
    let plain = plain.replace("\\\n", " ");
    let mut tokens = Vec::new();
    for line in plain.lines() {
        let line = line.split("//").next().unwrap_or("");
        if line.trim_start().starts_with('#') {
            // A directive, continued lines joined above.
            continue;
        }
        let mut word = String::new();
        for c in line.chars().chain([' ']) {
            if c.is_alphanumeric() || c == '_' {
                word.push(c);
                continue;
            }
            if !word.is_empty() {
                tokens.push(std::mem::take(&mut word));
            }
            if !c.is_whitespace() {
                tokens.push(c.to_string());
            }
        }
    }
    tokens
}

/// Bits of a C integer type.
fn c_integer(name: &str) -> Option<u64> {
    match name {
        "u8" | "char" => Some(8),
        "u16" | "__be16" => Some(16),
        "u32" | "__be32" => Some(32),
        "u64" | "__be64" => Some(64),
        _ => None,
    }
}

/// Enumerators and macros with a plain value: a number, or a number shifted left.
pub fn constants(text: &str) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    for line in text.lines() {
        let line = line.split("/*").next().unwrap_or("").trim();
        let pair = match line.strip_prefix("#define") {
            Some(rest) => rest.trim().split_once(char::is_whitespace),
            None => line.trim_end_matches(',').split_once('='),
        };
        let Some((name, value)) = pair else { continue };
        let value = value.trim().trim_start_matches('(').trim_end_matches(')');
        let value = match value.split_once("<<") {
            None => number(value),
            Some((left, right)) => number(left.trim().trim_end_matches("ull"))
                .and_then(|left| number(right.trim()).map(|right| left << right)),
        };
        if let Ok(value) = value {
            found.insert(name.trim().to_owned(), value);
        }
    }
    found
}

/// A C integer literal.
pub fn number(token: &str) -> Result<u64, String> {
    let parsed = match token.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => token.parse(),
    };
    parsed.map_err(|_| format!("{token} is not a number"))
}

struct Parser<'a> {
    tokens: &'a [String],
    at: usize,
    dialect: Dialect,
    constants: BTreeMap<String, u64>,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<&'a str> {
        self.tokens.get(self.at).map(String::as_str)
    }

    fn next(&mut self) -> Option<&'a str> {
        let token = self.peek()?;
        self.at += 1;
        Some(token)
    }

    fn word(&mut self) -> Result<&'a str, String> {
        self.next().ok_or_else(|| "the header ends in the middle".to_owned())
    }

    fn expect(&mut self, wanted: &str) -> Result<(), String> {
        let token = self.word()?;
        if token == wanted { Ok(()) } else { Err(format!("{wanted} expected, not {token}")) }
    }

    /// From the opening to the closing brace.
    fn aggregate(&mut self, union: bool) -> Result<Aggregate, String> {
        self.expect("{")?;
        let mut members = Vec::new();
        loop {
            match self.peek() {
                Some("}") => break,
                // A macro that only gives the members between its brackets a name of their own.
                Some("struct_group") => self.at += 4,
                Some(")") => self.at += 2,
                _ => members.push(self.member()?),
            }
        }
        self.expect("}")?;
        if self.peek() == Some("__packed") {
            self.at += 1;
        }
        Ok(Aggregate { union, members })
    }

    fn member(&mut self) -> Result<Member, String> {
        match self.word()? {
            integer if self.dialect == Dialect::C && c_integer(integer).is_some() => {
                let bits = c_integer(integer).unwrap_or(0);
                let name = self.word()?.to_owned();
                let count = match self.dimensions()?.as_slice() {
                    [] => None,
                    all => Some(all.iter().product()),
                };
                if self.peek() == Some(":") {
                    // The place of a bit-field depends on the compiler; only its size counts here.
                    self.at += 1;
                    let bits = number(self.word()?)?;
                    self.expect(";")?;
                    return Ok(Member {
                        name: format!("reserved {name}"),
                        element: Element::Bits(bits),
                        count,
                    });
                }
                self.expect(";")?;
                Ok(Member { name, element: Element::Bits(bits), count })
            }
            "u8" => {
                let name = self.word()?.to_owned();
                let mut dimensions = self.dimensions()?;
                let bits = dimensions.pop().ok_or_else(|| format!("{name} has no width"))?;
                let count = match dimensions.as_slice() {
                    [] => None,
                    all => Some(all.iter().product()),
                };
                self.expect(";")?;
                Ok(Member { name, element: Element::Bits(bits), count })
            }
            keyword @ ("struct" | "union") => {
                let element = if self.peek() == Some("{") {
                    Element::Inline(self.aggregate(keyword == "union")?)
                } else {
                    let c_name = self.word()?;
                    Element::Named(
                        short_name(c_name, self.dialect)
                            .ok_or_else(|| format!("{c_name} is not of this header"))?,
                    )
                };
                let name = if self.peek() == Some(";") { String::new() } else { self.word()?.to_owned() };
                let count = match self.dimensions()?.as_slice() {
                    [] => None,
                    all => Some(all.iter().product()),
                };
                self.expect(";")?;
                Ok(Member { name, element, count })
            }
            other => Err(format!("a member begins with {other}")),
        }
    }

    /// `[a][b]…`; an empty pair of brackets counts as 0.
    fn dimensions(&mut self) -> Result<Vec<u64>, String> {
        let mut all = Vec::new();
        while self.peek() == Some("[") {
            self.expect("[")?;
            if self.peek() == Some("]") {
                all.push(0);
            } else {
                let word = self.word()?;
                all.push(self.constants.get(word).copied().map_or_else(|| number(word), Ok)?);
            }
            self.expect("]")?;
        }
        Ok(all)
    }
}
