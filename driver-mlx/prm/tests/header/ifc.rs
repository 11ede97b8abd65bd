//! The part of C that `mlx5_ifc.h` is written in: structures and unions whose members are `u8 name[bits]`, arrays of them,
//! and other such structures.

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

/// A structure or a union.
#[derive(Debug, Clone)]
struct Aggregate {
    union: bool,
    members: Vec<Member>,
}

/// All structures of a header, by name without `mlx5_ifc_` and `_bits`; a few that have an enumerator for an array length
/// are kept as what is wrong with them.
#[derive(Debug)]
pub struct Header(BTreeMap<String, Result<Aggregate, String>>);

/// A member as C sees it, embedded structures included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Bits from the start of the outermost structure.
    pub bit_offset: u64,
    /// Bits of the member, of all elements of an array, of one element of an open-ended array.
    pub bit_width: u64,
    /// Whether it is a plain integer, not an array or a structure.
    pub scalar: bool,
}

impl Header {
    /// Reads the whole header; what is not a structure of bits (enumerations, macros) is passed over.
    pub fn parse(text: &str) -> Self {
        let tokens = tokens(text);
        let mut parser = Parser { tokens: &tokens, at: 0 };
        let mut found = BTreeMap::new();
        while let Some(token) = parser.next() {
            let union = token == "union";
            if !union && token != "struct" {
                continue;
            }
            let Some(name) = parser.next().and_then(short_name) else { continue };
            if parser.peek() != Some("{") {
                continue;
            }
            let aggregate = parser.aggregate(union).map_err(|error| format!("{name}: {error}"));
            found.insert(name, aggregate);
        }
        Self(found)
    }

    /// Whether the header has this structure.
    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Every member of `name` by its dotted path below the structure, embedded structures themselves included; and the size
    /// of the structure in bits.
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

fn short_name(c_name: &str) -> Option<String> {
    let name = c_name.strip_prefix("mlx5_ifc_")?;
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
        while self.peek() != Some("}") {
            members.push(self.member()?);
        }
        self.expect("}")?;
        Ok(Aggregate { union, members })
    }

    fn member(&mut self) -> Result<Member, String> {
        match self.word()? {
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
                    Element::Named(short_name(c_name).ok_or_else(|| format!("{c_name} is not of this header"))?)
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
                all.push(number(self.word()?)?);
            }
            self.expect("]")?;
        }
        Ok(all)
    }
}
