package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"skyserve/internal/telemetry"
)

// counting returns the admin API of a balancer with the usage of some months.
func counting(t *testing.T, months map[string]string) string {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		report, known := months[r.URL.Query().Get("month")]
		if !known {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_, _ = w.Write([]byte(report))
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

const (
	november = `{"at":"2026-11-21T10:00:00Z","month":"2026-11","complete":true,"usage":[
		{"key":"acme","tenant":"acme","model":"m","region":"local/us","requests":3,"prompt_tokens":30,"cached_tokens":10,"output_tokens":3,"today":{"requests":1,"prompt_tokens":7,"cached_tokens":2,"output_tokens":1}},
		{"key":"acme","tenant":"acme","model":"m","region":"local/eu","requests":2,"prompt_tokens":20,"cached_tokens":0,"output_tokens":2,"today":{"requests":0,"prompt_tokens":0,"cached_tokens":0,"output_tokens":0}},
		{"key":"gone","tenant":"","model":"n","region":"local/us","requests":1,"prompt_tokens":5,"cached_tokens":0,"output_tokens":1,"today":{"requests":0,"prompt_tokens":0,"cached_tokens":0,"output_tokens":0}}],
		"quotas":[{"key":"acme","tenant":"acme","unit":"tokens","period":"month","limit":100,"used":55,"left":45,"resets_at":"2026-12-01T00:00:00Z"}]}`
	october = `{"at":"2026-11-21T10:00:00Z","month":"2026-10","complete":true,"usage":[
		{"key":"acme","tenant":"acme","model":"m","region":"local/us","requests":100,"prompt_tokens":1000,"cached_tokens":0,"output_tokens":0,"today":null}],"quotas":[]}`
	september = `{"at":"2026-11-21T10:00:00Z","month":"2026-09","complete":true,"usage":[],"quotas":[]}`
)

func TestUsageText(t *testing.T) {
	months := map[string]string{"": november, "2026-10": october, "2026-09": september}
	admin := counting(t, months)
	const quota = `
KEY   TENANT  QUOTA             LIMIT  USED  REMAINING  RESETS
acme  acme    tokens per month    100    55         45  2026-12-01
`
	for _, c := range []struct {
		o    usageOptions
		want string
	}{
		{usageOptions{by: []string{"key", "region"}}, `since 2026-11-01 (UTC)

KEY   REGION    REQUESTS  PROMPT  CACHED  OUTPUT
acme  local/eu         2      20       0       2
acme  local/us         3      30      10       3
gone  local/us         1       5       0       1
all                    6      55      10       6
` + quota},
		{usageOptions{by: []string{"tenant"}, since: "today"}, `since 2026-11-21 (UTC)

TENANT  REQUESTS  PROMPT  CACHED  OUTPUT
acme           1       7       2       1
` + quota},
		{usageOptions{by: []string{"tenant"}, since: "2026-09"}, `since 2026-09-01 (UTC)

TENANT  REQUESTS  PROMPT  CACHED  OUTPUT
-              1       5       0       1
acme         105    1050      10       5
all          106    1055      10       6
` + quota},
	} {
		c.o.list.output, c.o.admins = "text", []string{admin}
		var out bytes.Buffer
		if err := runUsage(t.Context(), &c.o, &out); err != nil || out.String() != c.want {
			t.Errorf("%+v: %v\n%s\nwant\n%s", c.o, err, out.String(), c.want)
		}
	}
}

// A cost is known only if all requests have a price.
func TestUsageShowsCost(t *testing.T) {
	const month = `{"at":"2026-11-21T10:00:00Z","month":"2026-11","complete":true,"usage":[
		{"key":"acme","tenant":"acme","model":"m","region":"local/us","requests":3,"prompt_tokens":30,"output_tokens":3,"priced_requests":3,"cost_nano_usd":1500000000,"cost_usd":1.5,"today":{}},
		{"key":"acme","tenant":"acme","model":"n","region":"local/us","requests":2,"prompt_tokens":20,"output_tokens":2,"priced_requests":1,"cost_nano_usd":250000,"cost_usd":null,"today":{}},
		{"key":"free","tenant":"free","model":"f","region":"local/us","requests":1,"prompt_tokens":5,"output_tokens":1,"priced_requests":0,"cost_nano_usd":0,"cost_usd":null,"today":{}}],
		"quotas":[],"budgets":[{"key":"","tenant":"acme","period":"month","limit_usd":100,"used_usd":1.50025,"remaining_usd":98.49975,"resets_at":"2026-12-01T00:00:00Z"}]}`
	admin := counting(t, map[string]string{"": month})
	var out bytes.Buffer
	if err := runUsage(t.Context(), &usageOptions{by: []string{"model"}, list: outputFlags{output: "text"}, admins: []string{admin}}, &out); err != nil {
		t.Fatal(err)
	}
	const want = `since 2026-11-01 (UTC)

MODEL  REQUESTS  PROMPT  CACHED  OUTPUT   COST (USD)
f             1       5       0       1            -
m             3      30       0       3       1.5000
n             2      20       0       2  >= 0.000250
all           6      55       0       6    >= 1.5003

KEY  TENANT  QUOTA             LIMIT    USED  REMAINING  RESETS
-    acme    USD per month  100.0000  1.5003    98.4998  2026-12-01
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
	out.Reset()
	if err := runUsage(t.Context(), &usageOptions{by: []string{"key"}, list: outputFlags{output: "json"}, admins: []string{admin}}, &out); err != nil {
		t.Fatal(err)
	}
	var u usageReport
	if err := json.Unmarshal(out.Bytes(), &u); err != nil || len(u.Usage) != 3 || len(u.Budgets) != 1 {
		t.Fatalf("%v: %s", err, out.String())
	}
	if c := u.Usage[0].CostUSD; c == nil || *c != 1.5 || u.Usage[1].CostUSD != nil || u.Usage[2].CostUSD != nil {
		t.Errorf("costs in %s", out.String())
	}
}

func TestUsageJSON(t *testing.T) {
	o := usageOptions{list: outputFlags{output: "json"}, since: "2026-10", by: []string{"tenant"}, admins: []string{counting(t, map[string]string{"": november, "2026-10": october})}}
	var out bytes.Buffer
	if err := runUsage(t.Context(), &o, &out); err != nil {
		t.Fatal(err)
	}
	var u usageReport
	if err := json.Unmarshal(out.Bytes(), &u); err != nil {
		t.Fatal(err)
	}
	if u.Since != "2026-10-01" || !u.Complete || len(u.Usage) != 3 || u.Usage[1].Requests != 103 || u.Usage[1].Key != "acme" || u.Usage[1].Region != "local/us" || len(u.Quotas) != 1 {
		t.Errorf("got %s", out.String())
	}
}

// A complete report is preferred to an incomplete one, and that to a balancer that does not respond.
func TestUsagePrefersCompleteReport(t *testing.T) {
	silent := counting(t, nil)
	part := counting(t, map[string]string{"": strings.Replace(november, `"complete":true`, `"complete":false`, 1)})
	all := counting(t, map[string]string{"": november})
	const incomplete = "incomplete: the usage of one balancer: it has no store, or no store responds\n"
	for _, c := range []struct {
		admins  []string
		partial bool
	}{{[]string{silent, part, all}, false}, {[]string{part, silent}, true}} {
		var out bytes.Buffer
		if err := runUsage(t.Context(), &usageOptions{list: outputFlags{output: "text"}, admins: c.admins}, &out); err != nil || strings.Contains(out.String(), incomplete) != c.partial {
			t.Errorf("%v: %v\n%s", c.admins, err, out.String())
		}
	}
	var ee *exitError
	if err := runUsage(t.Context(), &usageOptions{list: outputFlags{output: "text"}, admins: []string{silent}}, &bytes.Buffer{}); !errors.As(err, &ee) || ee.code != exitFailed {
		t.Errorf("no balancer responds: %v", err)
	}
}

func TestUsageRejectsInvalidFlags(t *testing.T) {
	admin := counting(t, map[string]string{"": november})
	for want, o := range map[string]usageOptions{
		`--since: must be today or a month such as 2026-10, got "yesterday"`: {since: "yesterday"},
		`--since: must be today or a month such as 2026-10, got "2026-1"`:    {since: "2026-1"},
		`--since: must be a month from 2026-09 to 2026-11, got "2026-08"`:    {since: "2026-08"},
		`--since: must be a month from 2026-09 to 2026-11, got "2026-12"`:    {since: "2026-12"},
		`--by: must be one of key, tenant, model, region, got "colour"`:      {by: []string{"key", "colour"}},
		`-o xml: must be one of text, wide, name, json, yaml, jsonpath=PATH`: {list: outputFlags{output: "xml"}},
		`--admin: must be a URL, got " "`:                                    {admins: []string{" "}},
	} {
		if o.list.output == "" {
			o.list.output = "text"
		}
		if o.admins == nil {
			o.admins = []string{admin}
		}
		var ee *exitError
		if err := runUsage(t.Context(), &o, &bytes.Buffer{}); !errors.As(err, &ee) || ee.code != exitUsage || ee.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	if telemetry.UsageMonths != 2 {
		t.Error("the months of this test differ from those that are kept")
	}
}
