package load

import (
	"fmt"
	"testing"

	"skyserve/internal/sim/workload"
)

func TestParseTargets(t *testing.T) {
	for _, c := range []struct {
		entries   []string
		want, err string
	}{
		{[]string{"us=http://127.0.0.1:8001", "eu=https://eu.example.com/"}, "[{us http://127.0.0.1:8001} {eu https://eu.example.com}]", ""},
		{[]string{"http://127.0.0.1:8001/v1"}, "[{default http://127.0.0.1:8001}]", ""},
		{[]string{"http://h/base?x=1"}, "[{default http://h/base?x=1}]", ""},
		{nil, "[]", "--target: requires at least one REGION=URL"},
		{[]string{"us"}, "[]", `--target us: must be a URL that starts with http:// or https://, or REGION=URL`},
		{[]string{"us=127.0.0.1:8001"}, "[]", `--target us=127.0.0.1:8001: must be REGION=URL, where URL starts with http:// or https://; did you mean us=http://127.0.0.1:8001?`},
		{[]string{"localhost:22601"}, "[]", `--target localhost:22601: must be a URL that starts with http:// or https://, or REGION=URL; did you mean http://localhost:22601?`},
		{[]string{"us=ftp://h"}, "[]", `--target us=ftp://h: must be REGION=URL, where URL starts with http:// or https://`},
		{[]string{"us=http://a", "us=http://b"}, "[]", `--target us=http://b: each target requires its own region, such as us=http://b`},
		{[]string{"=http://a"}, "[]", `--target =http://a: each target requires its own region, such as us=http://a`},
	} {
		got, err := ParseTargets(c.entries)
		if fmt.Sprint(got) != c.want || errorText(err) != c.err {
			t.Errorf("%v: %v, error %v", c.entries, got, err)
		}
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestParseClientsAndWeights(t *testing.T) {
	targets := []Target{{"us", ""}, {"eu", ""}}
	for _, c := range []struct {
		entries   []string
		want, err string
	}{
		{[]string{"us=40", "eu=20"}, "map[eu:20 us:40]", ""},
		{[]string{"us=40"}, "map[us:40]", ""},
		{[]string{"7"}, "map[eu:7 us:7]", ""},
		{[]string{"fr=1"}, "", `--clients fr=1: unknown region "fr": must be one of us, eu`},
		{[]string{"us=1", "us=2"}, "", `--clients us=2: duplicate region "us"`},
		{[]string{"us=many"}, "", `--clients us=many: must be a number of clients from 0 to 1000000, got "many"`},
		{[]string{"us=-1"}, "", `--clients us=-1: must be a number of clients from 0 to 1000000, got "-1"`},
		{[]string{"us=0"}, "", "--clients: must be at least 1"},
	} {
		got, err := ParseClients(c.entries, targets)
		if err == nil && fmt.Sprint(got) != c.want || errorText(err) != c.err {
			t.Errorf("%v: %v, error %v", c.entries, got, err)
		}
	}
	for _, c := range []struct {
		entries   []string
		want, err string
	}{
		{nil, "[{us 1} {eu 1}]", ""},
		{[]string{"us=2", "eu=0.5"}, "[{us 2} {eu 0.5}]", ""},
		{[]string{"eu=1"}, "[{eu 1}]", ""},
		{[]string{"us=NaN"}, "", `--weights us=NaN: must be a number of at least 0, got "NaN"`},
		{[]string{"us=0"}, "", "--weights: the sum must be greater than 0"},
		{[]string{"mars=1"}, "", `--weights mars=1: unknown region "mars": must be one of us, eu`},
	} {
		got, err := ParseWeights(c.entries, targets)
		if err == nil && fmt.Sprint(got) != c.want || errorText(err) != c.err {
			t.Errorf("%v: %v, error %v", c.entries, got, err)
		}
	}
}

func TestClients(t *testing.T) {
	targets := []Target{{"eu", ""}, {"us", ""}}
	for _, c := range []struct {
		kind   workload.Kind
		counts map[string]int
		want   string
	}{
		{workload.ToT15, nil, "map[eu:20 us:40]"},
		{workload.Mixed, nil, "map[eu:20 us:2]"},
		{workload.Arena, map[string]int{"eu": 3}, "map[eu:3]"},
	} {
		clients, err := Clients(c.kind, targets, c.counts, 1)
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]int{}
		for _, client := range clients {
			got[client.Region]++
		}
		if fmt.Sprint(got) != c.want {
			t.Errorf("%s: clients %v, want %s", c.kind, got, c.want)
		}
	}
	if _, err := Clients("tot16", targets, map[string]int{"us": 1}, 1); err == nil {
		t.Error("no error for an unknown workload")
	}
}
