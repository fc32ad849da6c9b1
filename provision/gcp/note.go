package gcp

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"

	"skyserve/provision"
)

// noteKey is the key of a machine's metadata entry that contains its note.
const noteKey = "skyserve"

// note is the description of an object that is stored with it in the cloud.
type note struct {
	provision.Object
	Role  provision.Role           `json:"role"`
	Rules []provision.FirewallRule `json:"rules,omitempty"` // of a firewall
	Peers []netip.Addr             `json:"peers,omitempty"` // of a firewall
}

// noteOf returns the note of a desired object, with its offering if it has one.
func noteOf(w provision.Desired, offer *provision.Offering) note {
	return note{
		Object: provision.Object{
			ID: w.ID, Kind: w.Kind, Service: w.Service, Owner: w.Owner, Region: w.Region, Offering: offer,
			SpecHash: w.SpecHash, ImmutableHash: w.ImmutableHash, BuildHash: w.BuildHash, Labels: w.Labels, CostPerHour: w.CostPerHour,
		},
		Role: roleOf(w), Rules: w.Rules, Peers: w.SameRole,
	}
}

// roleOf returns the role of a machine, or of the machines that a prerequisite is for; empty when it is
// not set.
func roleOf(w provision.Desired) provision.Role {
	if w.Machine != nil {
		return w.Machine.Role
	}
	return provision.Role(w.Labels["role"])
}

// text encodes a note.
func (n note) text() (string, error) {
	text, err := json.Marshal(n)
	if err != nil {
		return "", fmt.Errorf("encoding the metadata of %s: %w", n.ID, err)
	}
	return string(text), nil
}

// readNote decodes a note; false if the text is not a note: skyserve did not create the object.
func readNote(text string) (note, bool) {
	var n note
	err := json.Unmarshal([]byte(text), &n)
	return n, err == nil && n.Service != "" && n.ID != ""
}

// sameObject reports whether two notes describe the same object, possibly with different configurations.
func (n note) sameObject(o note) bool {
	return n.Service == o.Service && n.Owner == o.Owner && n.ID == o.ID
}

// maxNameLength is the maximum length of a name in Compute Engine.
const maxNameLength = 63

// resourceName returns a valid Compute Engine name (lower-case letters, digits and dashes) of at most
// maxLength characters: readable words, and a hash of the key, which makes the name unique.
func resourceName(maxLength int, key []string, words ...string) string {
	const hashLength = 12
	readable := strings.Join(append([]string{"skyserve"}, words...), "-")
	readable = sanitizeName(readable, maxLength-1-hashLength, "")
	return strings.TrimRight(readable, "-") + "-" + hashOf(key)[:hashLength]
}

// machinePrefix returns the name prefix of the machines of one kind of one service, and of no others: it
// ends in two dashes and contains no two dashes before. IAM conditions on machines match it.
func machinePrefix(kind provision.ObjectKind, service string) string {
	const maxLength, nameLength, hashLength = 24, 17, 6
	if len(service) > maxLength || strings.Contains(service, "--") {
		readable := strings.Join(strings.FieldsFunc(service, func(r rune) bool { return r == '-' }), "-")
		readable = strings.TrimRight(readable[:min(nameLength, len(readable))], "-")
		service = readable + "-" + hashOf([]string{service})[:hashLength]
	}
	return fmt.Sprintf("skyserve-%s-%s--", kind, sanitizeName(service, maxLength, ""))
}

// machineName returns the name of a machine: its kind and service, its id truncated to fit, and a hash
// of the key.
func machineName(kind provision.ObjectKind, service, id string, key []string) string {
	const hashLength = 12
	readable := sanitizeName(machinePrefix(kind, service)+id, maxNameLength-1-hashLength, "")
	return strings.TrimRight(readable, "-") + "-" + hashOf(key)[:hashLength]
}

// sanitizeName replaces the characters of a text that are neither allowed in names nor contained in extra,
// and truncates it to maxLength.
func sanitizeName(text string, maxLength int, extra string) string {
	text = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || strings.ContainsRune(extra, r) {
			return r
		}
		return '-'
	}, strings.ToLower(text))
	return text[:min(maxLength, len(text))]
}

// hashOf returns the SHA-256 of some words in hexadecimal. It hashes each word with its length, so that
// different lists of words do not collide.
func hashOf(words []string) string {
	h := sha256.New()
	for _, w := range words {
		fmt.Fprintf(h, "%d:%s,", len(w), w)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// tag returns the network tag of the machines of a role in the region place; in all regions if place is
// empty.
func (n note) tag(role provision.Role, place string) string {
	return resourceName(maxNameLength, []string{"tag", n.Service, n.Owner, string(role), place}, n.Service, string(role), cmp.Or(place, "all"))
}

// requestID returns a new id for every change. Names prevent duplicates across processes; request ids do
// not. If two processes derived the same id from the same desired object, the second process would receive
// the error of the first for an hour.
func requestID() string {
	var b [16]byte
	rand.Read(b[:]) //nolint:errcheck // rand.Read never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[0:4], b[4:6], b[6:8], b[8:10], b[10:])
}
