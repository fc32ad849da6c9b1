package testcloud

import (
	"encoding/json"
	"hash/fnv"
	"net/http"
	"strconv"
	"strings"
)

// gceRoot is the start of the links to resources of Compute Engine.
const gceRoot = "https://www.googleapis.com/compute/v1/"

// identify adds what every resource and list of Compute Engine has, where the response of a read lacks it: its
// selfLink and id. Guest attributes have no id.
func identify(r *http.Request, text []byte) []byte {
	path, compute := strings.CutPrefix(r.URL.Path, "/compute/v1/")
	if !compute || r.Method != http.MethodGet {
		return text
	}
	var fields map[string]json.RawMessage
	if json.Unmarshal(text, &fields) != nil || fields["kind"] == nil {
		return text
	}
	set := func(name, value string) {
		if fields[name] == nil {
			fields[name] = gceJSON(value)
		}
	}
	set("selfLink", gceRoot+path)
	switch {
	case strings.HasSuffix(path, "/getGuestAttributes"):
	case fields["items"] != nil || strings.HasSuffix(strings.Trim(string(fields["kind"]), `"`), "List"):
		set("id", path)
	default:
		set("id", gceNumber(path))
	}
	return gceJSON(fields)
}

// gceNumber returns the id of a resource that was not created here: a number.
func gceNumber(path string) string {
	h := fnv.New64a()
	h.Write([]byte(path)) //nolint:errcheck // a hash does not fail
	return strconv.FormatUint(h.Sum64()>>1, 10)
}
