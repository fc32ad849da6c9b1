package service

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"

	"github.com/invopop/jsonschema"
)

// SchemaID names the JSON schema of a service.yaml.
const SchemaID = "urn:skyserve:service.yaml"

// Schema is the JSON schema (draft 2020-12) of a service.yaml, made from Spec
// and the rules. It says what one key may hold; how keys fit each other is
// left to Parse, but for the five cases that editors can show.
func Schema() ([]byte, error) {
	r := jsonschema.Reflector{
		Anonymous:      true,
		ExpandedStruct: true,
		FieldNameTag:   "yaml",
		Mapper:         textSchema,
	}
	root := r.Reflect(&Spec{})
	root.ID, root.Title = SchemaID, "skyserve service"
	if err := decorate(root, root.Definitions, reflect.TypeFor[Spec](), map[reflect.Type]bool{}); err != nil {
		return nil, fmt.Errorf("making the JSON schema of service.yaml: %w", err)
	}
	conditions(root.Definitions)
	encrypted(root)
	text, err := json.MarshalIndent(root, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("writing the JSON schema of service.yaml: %w", err)
	}
	return append(text, '\n'), nil
}

// textSchema makes durations and sizes text; by their Go type they would be numbers.
func textSchema(t reflect.Type) *jsonschema.Schema {
	switch t {
	case durationType:
		return &jsonschema.Schema{Type: "string", Pattern: formDuration.expr.String()}
	case sizeType:
		return &jsonschema.Schema{Type: "string", Pattern: formSize.expr.String()}
	}
	return nil
}

// decorate adds the rules to the schema s of struct type t and to those below it.
func decorate(s *jsonschema.Schema, defs jsonschema.Definitions, t reflect.Type, done map[reflect.Type]bool) error {
	if done[t] {
		return nil
	}
	done[t] = true
	s.Required = nil
	for _, f := range fieldsOf(t) {
		prop, ok := s.Properties.Get(f.key)
		if !ok {
			return fmt.Errorf("%s has no schema", f.rule)
		}
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
		if err := decorate(def, defs, inner, done); err != nil {
			return err
		}
	}
	return nil
}

// structBelow is the struct that a field holds, directly or in a list or mapping.
func structBelow(t reflect.Type) (reflect.Type, bool) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Map {
		t = t.Elem()
	}
	return t, t.Kind() == reflect.Struct
}

// applyRule writes a rule and its default into the schema of a key.
func applyRule(s *jsonschema.Schema, key string) {
	r := rules[key]
	s.Description = r.text
	if d, ok := defaults[key]; ok {
		s.Default = written(d.value)
	} else if d, ok := simDefaults[key]; ok {
		s.Default = written(d.value)
	}
	list, words := wordsOf(key)
	element := s
	switch s.Type {
	case "array":
		element, s.UniqueItems = s.Items, r.unique
		if r.some {
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
	for _, w := range list.Built {
		if words {
			element.Enum = append(element.Enum, w)
		}
	}
	if r.form != nil {
		element.Pattern = r.form.expr.String()
	}
	if element.Type == "integer" || element.Type == "number" {
		applyLimits(element, r.limit)
	}
}

// keyNames is the schema of the keys that a user chooses; nil = any.
func keyNames(r rule, list WordList, words bool) *jsonschema.Schema {
	switch {
	case words:
		s := &jsonschema.Schema{}
		for _, w := range list.Built {
			s.Enum = append(s.Enum, w)
		}
		return s
	case r.keys != nil:
		return &jsonschema.Schema{Pattern: r.keys.expr.String()}
	}
	return nil
}

func applyLimits(s *jsonschema.Schema, l *limits) {
	if l == nil {
		return
	}
	least := json.Number(strconv.FormatFloat(l.least, 'f', -1, 64))
	if l.above {
		s.ExclusiveMinimum = least
	} else {
		s.Minimum = least
	}
	s.Maximum = json.Number(strconv.FormatFloat(l.most, 'f', -1, 64))
}

// conditions adds what editors can show of how keys fit each other.
func conditions(defs jsonschema.Definitions) {
	engine := defs["Engine"]
	engine.If = &jsonschema.Schema{Not: hasText("kind", "^sim$")}
	engine.Then = &jsonschema.Schema{Not: anyOf(simKeys...)}

	region := defs["RegionSpec"]
	region.If = hasText("name", "^static/")
	region.Then = has("endpoints")
	region.Then.Not = anyOf("capacity", "reserved", "on_demand_base")
	region.Else = &jsonschema.Schema{Not: has("endpoints")}
	region.AllOf = networks()

	dns := defs["DNS"]
	dns.If = hasText("provider", "^"+DNSEmbedded+"$")
	dns.Then = &jsonschema.Schema{Not: anyOf(keysOfProvider[DNSRoute53]...)}
	dns.Else = has("zone")
	dns.Else.Not = anyOf(keysOfProvider[DNSEmbedded]...)

	defs["TLS"].OneOf = []*jsonschema.Schema{
		{Required: []string{"cert", "key"}, Not: has("acme")},
		{Required: []string{"acme"}, Not: anyOf("cert", "key")},
	}
}

// encrypted says that a service with a region in a cloud has a certificate, or says that it
// has none.
func encrypted(root *jsonschema.Schema) {
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

// networks says which regions have a network, and how their clouds name it.
func networks() []*jsonschema.Schema {
	one := uint64(1)
	amazon := jsonschema.NewProperties()
	amazon.Set("network", &jsonschema.Schema{Pattern: awsVPC.String()})
	amazon.Set("subnets", &jsonschema.Schema{Items: &jsonschema.Schema{Pattern: awsSubnet.String()}, MinItems: &one})
	google := jsonschema.NewProperties()
	google.Set("subnets", &jsonschema.Schema{MaxItems: &one})
	return []*jsonschema.Schema{
		{If: hasText("name", "^("+CloudAWS+"|"+CloudGCP+")/"), Else: &jsonschema.Schema{Not: anyOf("network", "subnets")}},
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

// hasText holds for an object with a key whose text matches an expression.
func hasText(key, expr string) *jsonschema.Schema {
	s := has(key)
	s.Properties = jsonschema.NewProperties()
	s.Properties.Set(key, &jsonschema.Schema{Pattern: expr})
	return s
}
