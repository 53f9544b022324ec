// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package schematest holds JSON against a schema, for tests. It knows the part of
// JSON Schema, draft 2020-12, that status.schema.json uses, and says so where a
// schema uses more.
package schematest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Schema is a schema, or a part of one.
type Schema struct {
	node map[string]any
	root map[string]any
}

// words are the keywords that are checked, or say nothing that could be.
var words = []string{
	"$schema", "$id", "$defs", "title", "description", // say nothing
	"$ref", "type", "const", "enum", "minimum", "pattern", "format", "required", "properties", "additionalProperties", "items",
}

// Parse reads a schema and looks whether all of it is known here.
func Parse(text []byte) (*Schema, error) {
	var root map[string]any
	if err := json.Unmarshal(text, &root); err != nil {
		return nil, fmt.Errorf("parse schema: %w", err)
	}
	s := &Schema{root, root}
	if err := s.known("#"); err != nil {
		return nil, fmt.Errorf("parse schema: %w", err)
	}
	return s, nil
}

func (s *Schema) known(at string) error {
	var errs []error
	for _, word := range slices.Sorted(maps.Keys(s.node)) {
		if !slices.Contains(words, word) {
			errs = append(errs, fmt.Errorf("%s: keyword %q is not known", at, word))
		}
	}
	for _, word := range []string{"properties", "$defs"} {
		for name := range s.object(word) {
			errs = append(errs, s.child(s.object(word)[name]).known(at+"/"+name))
		}
	}
	for _, word := range []string{"items", "additionalProperties"} {
		if sub, ok := s.node[word]; ok {
			errs = append(errs, s.child(sub).known(at+"/"+word))
		}
	}
	return errors.Join(errs...)
}

func (s *Schema) object(word string) map[string]any {
	m, _ := s.node[word].(map[string]any)
	return m
}

func (s *Schema) child(node any) *Schema {
	m, _ := node.(map[string]any)
	c := &Schema{m, s.root}
	if ref, ok := m["$ref"].(string); ok {
		target := &Schema{s.root, s.root}
		return target.child(target.object("$defs")[strings.TrimPrefix(ref, "#/$defs/")])
	}
	return c
}

// Properties are the names of an object's properties, sorted, and which of them
// are required.
func (s *Schema) Properties() (names []string, required map[string]bool) {
	required = make(map[string]bool)
	list, _ := s.node["required"].([]any)
	for _, name := range list {
		required[fmt.Sprint(name)] = true
	}
	return slices.Sorted(maps.Keys(s.object("properties"))), required
}

// Property is the schema of a property, nil if there is none.
func (s *Schema) Property(name string) *Schema {
	node, ok := s.object("properties")[name]
	if !ok {
		return nil
	}
	return s.child(node)
}

// Items is the schema of an array's elements.
func (s *Schema) Items() *Schema { return s.child(s.node["items"]) }

// Type is the type that a value must have, "" if any.
func (s *Schema) Type() string {
	t, _ := s.node["type"].(string)
	return t
}

// Validate holds a document against the schema. A property that the schema
// doesn't know is an error: it has been added to the one and not to the other.
func (s *Schema) Validate(text []byte) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return fmt.Errorf("validate: %w", err)
	}
	return s.check("$", v)
}

func (s *Schema) check(at string, v any) error {
	wrong := func(format string, args ...any) error {
		return fmt.Errorf("%s: %s", at, fmt.Sprintf(format, args...))
	}
	if t := s.Type(); t != "" && !isA(t, v) {
		return wrong("%v is no %s", v, t)
	}
	if c, ok := s.node["const"]; ok && fmt.Sprint(c) != fmt.Sprint(v) {
		return wrong("%v is not %v", v, c)
	}
	if list, ok := s.node["enum"].([]any); ok && !slices.Contains(list, v) {
		return wrong("%v is none of %v", v, list)
	}
	switch v := v.(type) {
	case json.Number:
		n, err := v.Float64()
		if least, ok := s.node["minimum"].(float64); err != nil || ok && n < least {
			return wrong("%v is too small", v)
		}
	case string:
		return s.checkText(v, wrong)
	case []any:
		var errs []error
		for i, x := range v {
			errs = append(errs, s.Items().check(fmt.Sprintf("%s[%d]", at, i), x))
		}
		return errors.Join(errs...)
	case map[string]any:
		return s.checkObject(at, v, wrong)
	}
	return nil
}

func (s *Schema) checkText(v string, wrong func(string, ...any) error) error {
	if p, ok := s.node["pattern"].(string); ok && !regexp.MustCompile(p).MatchString(v) {
		return wrong("%q is not like %s", v, p)
	}
	if s.node["format"] == "date-time" {
		if _, err := time.Parse(time.RFC3339Nano, v); err != nil || !strings.HasSuffix(v, "Z") {
			return wrong("%q is no time in UTC", v)
		}
	}
	return nil
}

func (s *Schema) checkObject(at string, v map[string]any, wrong func(string, ...any) error) error {
	var errs []error
	_, required := s.Properties()
	for name := range required {
		if _, ok := v[name]; !ok {
			errs = append(errs, wrong("no %q", name))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(v)) {
		property := s.Property(name)
		if other, ok := s.node["additionalProperties"]; ok && property == nil {
			property = s.child(other)
		}
		switch {
		case property != nil:
			errs = append(errs, property.check(at+"."+name, v[name]))
		case s.node["properties"] != nil: // else an object of anything
			errs = append(errs, wrong("%q is not in the schema", name))
		}
	}
	return errors.Join(errs...)
}

func isA(t string, v any) bool {
	switch v := v.(type) {
	case json.Number:
		return t == "number" || t == "integer" && !strings.ContainsAny(v.String(), ".eE")
	case string:
		return t == "string"
	case bool:
		return t == "boolean"
	case []any:
		return t == "array"
	case map[string]any:
		return t == "object"
	}
	return t == "null"
}
