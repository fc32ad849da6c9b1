package discover

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"skyserve/internal/service"
)

// checkHTTP accepts URLs that start with http://.
func checkHTTP(url string) error {
	if !strings.HasPrefix(url, "http://") && !strings.HasPrefix(url, "https://") || len(url) < 8 {
		return fmt.Errorf("url: must be http://HOST:PORT, got %q", url)
	}
	return nil
}

func TestParseFile(t *testing.T) {
	a, b := service.ReplicaConfig{URL: "http://a:1"}, service.ReplicaConfig{ID: "b-0", URL: "http://b:1", Model: "m"}
	for name, c := range map[string]struct {
		text  string
		want  []service.ReplicaConfig
		wrong string
	}{
		"lines":                  {"# engines\nhttp://a:1/\n\n  http://b:2 # new\r\n", []service.ReplicaConfig{a, {URL: "http://b:2"}}, ""},
		"no line end":            {"http://a:1", []service.ReplicaConfig{a}, ""},
		"byte order mark":        {"\ufeffhttp://a:1\n", []service.ReplicaConfig{a}, ""},
		"mark before a list":     {"\ufeff- http://a:1\r\n", []service.ReplicaConfig{a}, ""},
		"a query":                {"dns+http://e:1/p?key=hunter2\n", nil, `line 1: must be a base URL without query, such as "dns+http://e:1/p"`},
		"a DNS name":             {"dns+http://engines:8000\n", []service.ReplicaConfig{{URL: "dns+http://engines:8000"}}, ""},
		"a host beside its name": {"http://e:1\ndns+http://e:1\n", []service.ReplicaConfig{{URL: "http://e:1"}, {URL: "dns+http://e:1"}}, ""},
		"two paths of a name":    {"dns+http://e:1/a\ndns+http://e:1/b\n", nil, `line 2: id "e:1" is already used in line 1`},
		"YAML":                   {"# engines\n- http://a:1\n- url: http://b:1\n  model: m\n  id: b-0\n", []service.ReplicaConfig{a, b}, ""},
		"JSON":                   {`[{"url":"http://a:1"},{"url":"http://b:1","model":"m","id":"b-0"}]`, []service.ReplicaConfig{a, b}, ""},
		"empty on purpose":       {"[]\n", []service.ReplicaConfig{}, ""},
		"empty":                  {"", nil, "contains no replica"},
		"only comments":          {"# none\n\n", nil, "contains no replica"},
		"invalid URL":            {"http://a:1\n\nftp://b\n", nil, `line 3: must be http://HOST:PORT, got "ftp://b"`},
		"a half written line":    {"http://a:1\nhttp:/", nil, `line 2: must be http://HOST:PORT, got "http:"`},
		"half written JSON":      {"[\n{\"url\":\"http://a:1\"},\n{\"url\":", nil, "line "},
		"twice":                  {"http://a:1\nhttp://a:1/\n", nil, `line 2: "http://a:1" is already listed in line 1`},
		"same id":                {"- {url: http://a:1, id: x}\n- {url: http://b:1, id: x}\n", nil, `line 2: id "x" is already used in line 1`},
		"same id by two URLs":    {"http://a:1\nhttps://a:1\n", nil, `line 2: id "a:1" is already used in line 1`},
		"id of another URL":      {"- http://a:1\n- {url: http://b:1, id: \"a:1\"}\n", nil, `line 2: id "a:1" is already used in line 1`},
		"unknown key":            {"- url: http://a:1\n- url: http://b:1\n  modes: m\n", nil, `line 3: unknown key "modes": must be url, model or id`},
		"a number as the URL":    {"- url: 7\n", nil, "line 1: url: must be a string; put it in quotes"},
		"without URL":            {"- model: m\n", nil, `line 1: must be http://HOST:PORT, got ""`},
		"an entry of its own":    {"- [http://a:1]\n", nil, "line 1: must be a URL, or an object with the keys url, model and id"},
		"an object":              {"{url: http://a:1}\n", nil, "line 1: must be a list of replicas"},
		"two documents":          {"- http://a:1\n---\n- http://b:1\n", nil, "must contain one list, got 2 documents"},
		"dns+https":              {"dns+https://engines:8000\n", nil, "line 1: dns+https is not supported"},
		"SRV with a port":        {"srv+http://_vllm._tcp.example.com:80\n", nil, "line 1: must be srv+http://NAME"},
		"a name without a port":  {"dns+http://engines\n", nil, "line 1: must be dns+http://HOST:PORT"},
		"a port beyond 65535":    {"dns+http://engines:99999\n", nil, `line 1: must have a port from 1 to 65535, got "dns+http://engines:99999"`},
		"port zero":              {"dns+http://engines:0\n", nil, `line 1: must have a port from 1 to 65535, got "dns+http://engines:0"`},
		"an address as a name":   {"dns+http://10.0.0.1:80\n", nil, "line 1: must contain a DNS name"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ParseFile([]byte(c.text), checkHTTP)
			if c.wrong != "" {
				var le *LineError
				if !errors.As(err, &le) || !strings.Contains(err.Error(), c.wrong) {
					t.Errorf("got %v, %v; want %q", got, err, c.wrong)
				}
				return
			}
			if err != nil || !reflect.DeepEqual(got, c.want) {
				t.Errorf("got %+v, %v; want %+v", got, err, c.want)
			}
		})
	}
}

func FuzzParseFile(f *testing.F) {
	for _, text := range []string{"http://a:1\n", "- http://a:1\n- {url: http://b:1, id: x}\n", `[{"url":"http://a:1"}]`, "[]", "{", "- *a\n", "- &a {url: *a}\n", "-\x00", "? x\n"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := ParseFile([]byte(text), checkHTTP)
		var le *LineError
		if err != nil && (!errors.As(err, &le) || got != nil) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
		seen := map[string]bool{}
		for _, r := range got {
			if seen[r.URL] || CheckURL(r.URL, checkHTTP) != nil {
				t.Errorf("%q: %+v", text, got)
			}
			seen[r.URL] = true
		}
	})
}
