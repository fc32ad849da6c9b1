package service

import (
	"os"
	"reflect"
	"strings"
	"testing"
)

// sections maps each type to its section of the guide.
var sections = map[string]string{
	"Spec": "Service", "Model": "Model", "Engine": "Engine", "GPU": "GPU", "SLO": "SLO", "Bounds": "Replica bounds",
	"Adapter": "Adapter", "Endpoint": "Endpoint", "Provider": "Provider", "Split": "Split", "ProviderModel": "Provider model", "RegionSpec": "Region", "Reservation": "Reservation", "SpotSpec": "Spot", "BalancerSpec": "Balancer", "Memory": "Memory", "Auth": "Auth", "CORS": "CORS", "KeyLimits": "Key limits", "OIDC": "Identity tokens", "OIDCRole": "Roles", "Price": "Price", "TLS": "TLS", "ACME": "ACME", "EAB": "External account binding",
	"DNS": "DNS", "DNSClient": "DNS client", "Autoscale": "Autoscale", "Budget": "Budget", "StoreSpec": "Store", "StoreBackup": "Store backup", "GCPSpec": "Google Cloud", "LocalHosts": "Local",
}

// specTypes returns every struct type of a service.yaml.
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

// guideRows returns the cells of each table row of a section, by key.
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

// Every key has a row in the guide with its default and a valid example.
func TestGuideDescribesEveryKey(t *testing.T) {
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
				t.Errorf("%s: the guide has default %s, want `%s`", f.rule, row[1], d.Value)
			}
			if required := row[1] == "required"; required != rules[f.rule].required {
				t.Errorf("%s: the guide has required %v", f.rule, required)
			}
			checkExample(t, typ, f.rule, strings.Trim(row[2], "`"))
		}
		if len(rows) != typ.NumField() {
			t.Errorf("section %s has %d rows, want %d", sections[typ.Name()], len(rows), typ.NumField())
		}
	}
}

// checkExample binds one key on its own and ignores missing keys.
func checkExample(t *testing.T, typ reflect.Type, rule, example string) {
	t.Helper()
	_, key, _ := strings.Cut(rule, ".")
	if !strings.HasPrefix(example, key+": ") {
		t.Errorf("%s: the example %q is for another key", rule, example)
	}
	doc, bad := readYAML("example", []byte(example))
	if bad != nil {
		t.Errorf("%s: %v", rule, bad)
		return
	}
	b := newBinder(doc)
	b.bind(doc.root, reflect.New(typ).Elem(), "", "")
	for _, e := range b.errs {
		if e.Problem != "is required" {
			t.Errorf("%s: %v", rule, e)
		}
	}
}

func TestGuideExampleParses(t *testing.T) {
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

// Each key has a rule, and each rule has a key.
func TestEveryKeyHasRule(t *testing.T) {
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
				t.Errorf("%s contains %s, which is not a key", name, key)
			}
		}
	}
	for _, w := range wordLists {
		if !keys[w.Key] {
			t.Errorf("value list for %s, which is not a key", w.Key)
		}
	}
	for _, key := range simKeys {
		if !keys["Engine."+key] {
			t.Errorf("simKeys contains %s, which is not a key", key)
		}
	}
	for _, key := range sortedKeys(unimplementedKeys) {
		if keys[key] {
			t.Errorf("%s is both planned and implemented", key)
		}
	}
}

// A key with a default must reject zero; otherwise an explicit zero would silently become the
// default.
func TestDefaultedKeysRejectZero(t *testing.T) {
	for _, table := range []map[string]defaultValue{defaults, simDefaults} {
		for _, key := range sortedKeys(table) {
			if table[key].reason == "" {
				t.Errorf("%s has no reason", key)
			}
			switch reflect.ValueOf(table[key].value).Kind() {
			case reflect.Int, reflect.Int64, reflect.Float64:
				if l := rules[key].limit; l == nil || l.min < 0 || l.min == 0 && !l.above {
					t.Errorf("%s has a default and allows zero", key)
				}
			}
		}
	}
}

// A default is the first implemented value of its list.
func TestDefaultsAreImplemented(t *testing.T) {
	for key, want := range map[string]string{
		"BalancerSpec.policy": ImplementedPolicies()[0], "BalancerSpec.order": ImplementedOrders()[0],
		"Autoscale.strategy": ImplementedStrategies()[0], "Autoscale.forecast": ImplementedForecasters()[0],
	} {
		if d, ok := DefaultOf(key); !ok || d.Value != want {
			t.Errorf("the default of %s is %q, want %q", key, d.Value, want)
		}
	}
}
