package service

import (
	"cmp"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"

	"github.com/invopop/jsonschema"
)

// SchemaID is the ID of the JSON schema of service.yaml.
const SchemaID = "urn:skyserve:service.yaml"

// Schema returns the JSON schema (draft 2020-12) of service.yaml, generated from Spec and the
// rules. It constrains each key. Only Parse checks relations between keys, except for those that
// editors can show.
func Schema() ([]byte, error) {
	r := jsonschema.Reflector{
		Anonymous:      true,
		ExpandedStruct: true,
		FieldNameTag:   "yaml",
		Mapper:         textSchema,
	}
	root := r.Reflect(&Spec{})
	root.ID, root.Title = SchemaID, "skyserve service"
	if err := applyRules(root, root.Definitions, reflect.TypeFor[Spec](), map[reflect.Type]bool{}); err != nil {
		return nil, fmt.Errorf("generating the JSON schema of service.yaml: %w", err)
	}
	addConditions(root.Definitions)
	requireTLS(root)
	text, err := json.MarshalIndent(root, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encoding the JSON schema of service.yaml: %w", err)
	}
	return append(text, '\n'), nil
}

// textSchema maps durations and sizes to text; by their Go type they would be numbers.
func textSchema(t reflect.Type) *jsonschema.Schema {
	switch t {
	case durationType:
		return &jsonschema.Schema{Type: "string", Pattern: formDuration.expr}
	case sizeType:
		return &jsonschema.Schema{Type: "string", Pattern: formSize.expr}
	}
	return nil
}

// applyRules adds the rules to the schema s of struct type t and its nested types.
func applyRules(s *jsonschema.Schema, defs jsonschema.Definitions, t reflect.Type, done map[reflect.Type]bool) error {
	if done[t] {
		return nil
	}
	done[t] = true
	s.Required = nil
	reflected := s.Properties
	s.Properties = jsonschema.NewProperties()
	for _, f := range fieldsOf(t) {
		prop, ok := reflected.Get(cmp.Or(f.former, f.key))
		if !ok {
			return fmt.Errorf("%s has no schema", f.rule)
		}
		s.Properties.Set(f.key, prop)
		if rules[f.rule].required {
			s.Required = append(s.Required, f.key)
		}
		applyRule(prop, f.rule)
		inner, is := structBelow(t.Field(f.index).Type)
		if !is {
			continue
		}
		def, ok := defs[inner.Name()]
		if !ok {
			return fmt.Errorf("%s has no definition of %s", f.rule, inner.Name())
		}
		if err := applyRules(def, defs, inner, done); err != nil {
			return err
		}
		if short, ok := shorthandOf(inner); ok && prop.Items != nil {
			text, _ := def.Properties.Get(short.key)
			prop.Items = &jsonschema.Schema{OneOf: []*jsonschema.Schema{{Type: text.Type, Pattern: text.Pattern}, {Ref: prop.Items.Ref}}}
		}
	}
	former := FormerKeys(t)
	for _, key := range sortedKeys(former) {
		prop, _ := s.Properties.Get(key)
		old := *prop
		old.Deprecated, old.Description = true, "Former name of "+key+"."
		s.Properties.Set(former[key], &old)
	}
	return nil
}

// structBelow returns the struct type of a field, directly or in a list or mapping.
func structBelow(t reflect.Type) (reflect.Type, bool) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Map {
		t = t.Elem()
	}
	return t, t.Kind() == reflect.Struct
}

// applyRule adds a rule and its default to the schema of a key.
func applyRule(s *jsonschema.Schema, key string) {
	r := rules[key]
	s.Description = r.text
	if d, ok := defaults[key]; ok {
		s.Default = yamlValue(d.value)
	} else if d, ok := simDefaults[key]; ok {
		s.Default = yamlValue(d.value)
	}
	list, words := wordsOf(key)
	element := s
	switch s.Type {
	case "array":
		element, s.UniqueItems = s.Items, r.unique
		if r.nonEmpty {
			s.MinItems = new(uint64)
			*s.MinItems = 1
		}
	case "object":
		element, s.PropertyNames = s.AdditionalProperties, keyNames(r, list, words)
		words = false
	}
	if element == nil || element.Ref != "" {
		return
	}
	for _, w := range slices.Concat(list.Implemented, list.Words) {
		if words {
			element.Enum = append(element.Enum, w)
		}
	}
	if r.form != nil {
		element.Pattern = r.form.expr
	}
	if element.Type == "integer" || element.Type == "number" {
		applyLimits(element, r.limit)
	}
}

// keyNames returns the schema of keys that a user chooses; nil = any.
func keyNames(r rule, list ValueList, words bool) *jsonschema.Schema {
	switch {
	case words:
		s := &jsonschema.Schema{}
		for _, w := range slices.Concat(list.Implemented, list.Words) {
			s.Enum = append(s.Enum, w)
		}
		return s
	case r.keys != nil:
		return &jsonschema.Schema{Pattern: r.keys.expr}
	}
	return nil
}

func applyLimits(s *jsonschema.Schema, l *limits) {
	if l == nil {
		return
	}
	minimum := json.Number(strconv.FormatFloat(l.min, 'f', -1, 64))
	if l.above {
		s.ExclusiveMinimum = minimum
	} else {
		s.Minimum = minimum
	}
	s.Maximum = json.Number(strconv.FormatFloat(l.max, 'f', -1, 64))
}

// addConditions adds the relations between keys that editors can show.
func addConditions(defs jsonschema.Definitions) {
	engine := defs["Engine"]
	engine.If = &jsonschema.Schema{Not: hasText("kind", "^sim$")}
	engine.Then = &jsonschema.Schema{Not: anyOf(simKeys...)}

	region := defs["RegionSpec"]
	region.If = hasText("name", "^static/")
	region.Then = anyOf("endpoints", "endpoints_file")
	region.Else = &jsonschema.Schema{Not: anyOf("endpoints", "endpoints_file")}
	region.AllOf = cloudConditions()

	dns := defs["DNS"]
	dns.If = hasText("provider", "^"+DNSEmbedded+"$")
	dns.Then = &jsonschema.Schema{Not: anyOf(keysOfProvider[DNSRoute53]...)}
	dns.Else = has("zone")
	dns.Else.Not = anyOf(keysOfProvider[DNSEmbedded]...)

	defs["Auth"].AnyOf = anyOf("keys_from", "oidc").AnyOf
	defs["OIDC"].Not = &jsonschema.Schema{Required: []string{"tenant", "tenant_claim"}}

	defs["TLS"].OneOf = []*jsonschema.Schema{
		{Required: []string{"cert", "key"}, Not: has("acme")},
		{Required: []string{"acme"}, Not: anyOf("cert", "key")},
	}
}

// requireTLS requires that a service with a cloud region either configures TLS or sets insecure.
func requireTLS(root *jsonschema.Schema) {
	rented := jsonschema.NewProperties()
	rented.Set("regions", &jsonschema.Schema{Contains: hasText("name", "^("+CloudAWS+"|"+CloudGCP+")/")})
	insecure := has("insecure")
	insecure.Properties = jsonschema.NewProperties()
	insecure.Properties.Set("insecure", &jsonschema.Schema{Const: true})
	choice := jsonschema.NewProperties()
	choice.Set("balancer", &jsonschema.Schema{OneOf: []*jsonschema.Schema{has("tls"), insecure}})
	root.If = &jsonschema.Schema{Properties: rented}
	root.Then = &jsonschema.Schema{Required: []string{"balancer"}, Properties: choice}
}

// cloudConditions restricts keys about networks and capacity to cloud regions, in each cloud's notation.
func cloudConditions() []*jsonschema.Schema {
	one := uint64(1)
	amazon := jsonschema.NewProperties()
	amazon.Set("network", &jsonschema.Schema{Pattern: awsVPC.String()})
	amazon.Set("subnets", &jsonschema.Schema{Items: &jsonschema.Schema{Pattern: awsSubnet.String()}, MinItems: &one})
	amazon.Set("images", &jsonschema.Schema{AdditionalProperties: &jsonschema.Schema{Pattern: formImageAWS.expr}})
	google := jsonschema.NewProperties()
	google.Set("images", &jsonschema.Schema{AdditionalProperties: &jsonschema.Schema{Pattern: formImageGCP.expr}})
	google.Set("subnets", &jsonschema.Schema{MaxItems: &one})
	return []*jsonschema.Schema{
		{If: hasText("name", "^("+CloudAWS+"|"+CloudGCP+")/"), Else: &jsonschema.Schema{Not: anyOf(append([]string{"network", "subnets", "images"}, capacityKeys...)...)}},
		{If: hasText("name", "^"+CloudAWS+"/"), Then: &jsonschema.Schema{Properties: amazon, If: has("network"), Then: has("subnets")}, Else: &jsonschema.Schema{Not: has("access")}},
		{If: hasText("name", "^"+CloudGCP+"/"), Then: &jsonschema.Schema{Properties: google}},
		{If: has("subnets"), Then: has("network")},
	}
}

func has(key string) *jsonschema.Schema { return &jsonschema.Schema{Required: []string{key}} }

func anyOf(keys ...string) *jsonschema.Schema {
	s := &jsonschema.Schema{}
	for _, k := range keys {
		s.AnyOf = append(s.AnyOf, has(k))
	}
	return s
}

// hasText matches an object with a key whose text matches an expression.
func hasText(key, expr string) *jsonschema.Schema {
	s := has(key)
	s.Properties = jsonschema.NewProperties()
	s.Properties.Set(key, &jsonschema.Schema{Pattern: expr})
	return s
}
