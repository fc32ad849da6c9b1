package service

import (
	"os"
	"reflect"
	"strings"
	"testing"
)

// sections names the section of the guide that describes each type.
var sections = map[string]string{
	"Spec": "Service", "Model": "Model", "Engine": "Engine", "GPU": "GPU", "SLO": "SLO", "Bounds": "Replica bounds",
	"RegionSpec": "Region", "Reservation": "Reservation", "BalancerSpec": "Balancer", "Memory": "Memory", "Auth": "Auth", "KeyLimits": "Key limits", "TLS": "TLS", "ACME": "ACME", "EAB": "External account binding",
	"DNS": "DNS", "DNSClient": "DNS client", "Autoscale": "Autoscale", "StoreSpec": "Store", "GCPSpec": "Google Cloud", "LocalHosts": "Local",
}

// specTypes is every struct type of a service.yaml.
func specTypes() []reflect.Type {
	var types []reflect.Type
	seen := map[reflect.Type]bool{}
	var visit func(reflect.Type)
	visit = func(t reflect.Type) {
		t, ok := structBelow(t)
		if !ok || seen[t] {
			return
		}
		seen[t] = true
		types = append(types, t)
		for i := range t.NumField() {
			visit(t.Field(i).Type)
		}
	}
	visit(reflect.TypeFor[Spec]())
	return types
}

// guideRows are the rows of the tables of a section, cut into their cells.
func guideRows(t *testing.T, guide, section string) map[string][]string {
	t.Helper()
	_, text, ok := strings.Cut(guide, "\n## "+section+"\n")
	if !ok {
		t.Fatalf("the guide has no section %q", section)
	}
	text, _, _ = strings.Cut(text, "\n## ")
	rows := map[string][]string{}
	for line := range strings.Lines(text) {
		cells := strings.Split(strings.TrimSpace(line), " | ")
		if key := strings.Trim(cells[0], "|` "); strings.HasPrefix(line, "| `") {
			rows[key] = cells
		}
	}
	return rows
}

// TestGuide holds the guide to the types: every key has a row, the row states
// its default, and the example in it is right.
func TestGuide(t *testing.T) {
	text, err := os.ReadFile("../../docs/service-yaml.md")
	if err != nil {
		t.Fatal(err)
	}
	guide := strings.ReplaceAll(string(text), "| |", "| - |")
	for _, typ := range specTypes() {
		rows := guideRows(t, guide, sections[typ.Name()])
		for _, f := range fieldsOf(typ) {
			row := rows[f.key]
			if len(row) != 4 {
				t.Errorf("the guide has no row of 4 cells for %s: %q", f.rule, row)
				continue
			}
			if d, ok := DefaultOf(f.rule); ok && row[1] != "`"+d.Value+"`" {
				t.Errorf("%s: the guide says the default is %s, want `%s`", f.rule, row[1], d.Value)
			}
			if required := row[1] == "required"; required != rules[f.rule].required {
				t.Errorf("%s: the guide says required %v", f.rule, required)
			}
			checkExample(t, typ, f.rule, strings.Trim(row[2], "`"))
		}
		if len(rows) != typ.NumField() {
			t.Errorf("section %s has %d rows, want %d", sections[typ.Name()], len(rows), typ.NumField())
		}
	}
}

// checkExample binds one key on its own; that others are missing is no error.
func checkExample(t *testing.T, typ reflect.Type, rule, example string) {
	t.Helper()
	_, key, _ := strings.Cut(rule, ".")
	if !strings.HasPrefix(example, key+": ") {
		t.Errorf("%s: the example %q is of another key", rule, example)
	}
	doc, bad := readYAML("example", []byte(example))
	if bad != nil {
		t.Errorf("%s: %v", rule, bad)
		return
	}
	b := newBinder(doc)
	b.bind(doc.root, reflect.New(typ).Elem(), "", "")
	for _, e := range b.errs {
		if e.Problem != "is missing" {
			t.Errorf("%s: %v", rule, e)
		}
	}
}

func TestGuideStarts(t *testing.T) {
	text, err := os.ReadFile("../../docs/service-yaml.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "```yaml\n")
	example, _, _ := strings.Cut(rest, "```")
	if _, err := Parse("guide.yaml", []byte(example)); err != nil {
		t.Error(err)
	}
}

// TestRules holds the rules to the types: each key has one, each rule has a key.
func TestRules(t *testing.T) {
	keys := map[string]bool{}
	for _, typ := range specTypes() {
		for _, f := range fieldsOf(typ) {
			keys[f.rule] = true
			if rules[f.rule].text == "" {
				t.Errorf("%s has no text", f.rule)
			}
		}
	}
	for name, table := range map[string][]string{
		"rules": sortedKeys(rules), "defaults": sortedKeys(defaults), "simDefaults": sortedKeys(simDefaults),
	} {
		for _, key := range table {
			if !keys[key] {
				t.Errorf("%s speaks of %s, which is no key", name, key)
			}
		}
	}
	for _, w := range wordLists {
		if !keys[w.Key] {
			t.Errorf("the words of %s, which is no key", w.Key)
		}
	}
	for _, key := range simKeys {
		if !keys["Engine."+key] {
			t.Errorf("sim's key %s is no key", key)
		}
	}
	for _, key := range sortedKeys(plannedKeys) {
		if keys[key] {
			t.Errorf("%s is planned and built", key)
		}
	}
}

// TestZeroIsNoValue: a key with a default must refuse zero, or an explicit zero
// would silently become the default.
func TestZeroIsNoValue(t *testing.T) {
	for _, table := range []map[string]preset{defaults, simDefaults} {
		for _, key := range sortedKeys(table) {
			if table[key].reason == "" {
				t.Errorf("%s has no reason", key)
			}
			switch reflect.ValueOf(table[key].value).Kind() {
			case reflect.Int, reflect.Int64, reflect.Float64:
				if l := rules[key].limit; l == nil || l.least < 0 || l.least == 0 && !l.above {
					t.Errorf("%s has a default and allows zero", key)
				}
			}
		}
	}
}

// TestDefaultsAreBuilt: a default word is the first of those built.
func TestDefaultsAreBuilt(t *testing.T) {
	for key, want := range map[string]string{
		"BalancerSpec.policy": BuiltPolicies()[0], "BalancerSpec.order": BuiltOrders()[0],
		"Autoscale.strategy": BuiltStrategies()[0], "Autoscale.forecast": BuiltForecasts()[0],
	} {
		if d, ok := DefaultOf(key); !ok || d.Value != want {
			t.Errorf("the default of %s is %q, want %q", key, d.Value, want)
		}
	}
}
