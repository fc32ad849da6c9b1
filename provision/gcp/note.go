package gcp

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"

	"skyserve/provision"
)

// noteKey is the metadata entry of a machine that holds its note.
const noteKey = "skyserve"

// note is what an object says of itself in the cloud.
type note struct {
	provision.Object
	Role  provision.Kind   `json:"role"`
	Rules []provision.Rule `json:"rules,omitempty"` // of a firewall
}

// noteOf is the note of a wanted object, on an offering where it has one.
func noteOf(w provision.Want, offer *provision.Offering) note {
	return note{
		Object: provision.Object{
			ID: w.ID, Kind: w.Kind, Service: w.Service, Owner: w.Owner, Region: w.Region, Offering: offer,
			Spec: w.Spec, Fixed: w.Fixed, Build: w.Build, Labels: w.Labels, CostPerHour: w.CostPerHour,
		},
		Role: roleOf(w), Rules: w.Rules,
	}
}

// roleOf is the role of a machine, or of the machines that a foundation is for, which
// has no machine to say it; empty when nothing says it.
func roleOf(w provision.Want) provision.Kind {
	if w.Machine != nil {
		return w.Machine.Role
	}
	return provision.Kind(w.Labels["role"])
}

// text is a note as it is kept.
func (n note) text() (string, error) {
	text, err := json.Marshal(n)
	if err != nil {
		return "", fmt.Errorf("writing the note of %s: %w", n.ID, err)
	}
	return string(text), nil
}

// readNote reads a note; false where there is none, which means that the thing was
// not made here.
func readNote(text string) (note, bool) {
	var n note
	err := json.Unmarshal([]byte(text), &n)
	return n, err == nil && n.Service != "" && n.ID != ""
}

// same says whether two notes are of one object, whatever its configuration.
func (n note) same(o note) bool {
	return n.Service == o.Service && n.Owner == o.Owner && n.ID == o.ID
}

// longestName is how long a name may be in Compute Engine.
const longestName = 63

// named is a name that Compute Engine takes (lower-case letters, digits and dashes),
// cut to a length: some words for people, and a hash of the key, which is what tells names apart.
func named(most int, key []string, words ...string) string {
	const hashed = 12
	readable := strings.Join(append([]string{"skyserve"}, words...), "-")
	readable = plain(readable, most-1-hashed, "")
	return strings.TrimRight(readable, "-") + "-" + hashOf(key)[:hashed]
}

// machinePrefix begins the names of the machines of one kind of one service, and of no others: two
// dashes end it, and are nowhere before. What an account may do to machines is narrowed to it.
func machinePrefix(kind provision.Kind, service string) string {
	const most, kept, hashed = 24, 17, 6
	if len(service) > most || strings.Contains(service, "--") {
		readable := strings.Join(strings.FieldsFunc(service, func(r rune) bool { return r == '-' }), "-")
		readable = strings.TrimRight(readable[:min(kept, len(readable))], "-")
		service = readable + "-" + hashOf([]string{service})[:hashed]
	}
	return fmt.Sprintf("skyserve-%s-%s--", kind, plain(service, most, ""))
}

// machineName is the name of a machine: of its kind and service, its id as far as there is room,
// and a hash of the key.
func machineName(kind provision.Kind, service, id string, key []string) string {
	const hashed = 12
	readable := plain(machinePrefix(kind, service)+id, longestName-1-hashed, "")
	return strings.TrimRight(readable, "-") + "-" + hashOf(key)[:hashed]
}

// plain is a text in the letters of names, and the extra ones, cut to a length.
func plain(text string, most int, extra string) string {
	text = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || strings.ContainsRune(extra, r) {
			return r
		}
		return '-'
	}, strings.ToLower(text))
	return text[:min(most, len(text))]
}

// hashOf is the SHA-256 of some words in hexadecimal, each with its length, so that
// no two lists of words meet.
func hashOf(words []string) string {
	h := sha256.New()
	for _, w := range words {
		fmt.Fprintf(h, "%d:%s,", len(w), w)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// tag is the network tag of the machines of a role, in one region or, where place is
// empty, in all.
func (n note) tag(role provision.Kind, place string) string {
	return named(longestName, []string{"tag", n.Service, n.Owner, string(role), place}, n.Service, string(role), cmp.Or(place, "all"))
}

// requestID is new for every change: names, not request ids, keep a second program
// from making things twice. An id that two programs derived from the same
// want would bring the second one the first one's failure back for an hour.
func requestID() string {
	var b [16]byte
	rand.Read(b[:]) //nolint:errcheck // it never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[0:4], b[4:6], b[6:8], b[8:10], b[10:])
}
