package provision

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"skyserve/internal/service"
)

// ControllerID is the name of a service's controller in commands and in the status.
const ControllerID = "controller"

// NameServerID is the id of the machine that serves DNS for a service's public name.
const NameServerID = "nameserver"

// BalancerID returns the id of the nth balancer of a region: lb-us-0.
func BalancerID(region service.Region, n int) string {
	return fmt.Sprintf("lb-%s-%d", region.ShortName(), n)
}

// IsBalancerID reports whether an id has the form of a balancer's id: it begins with lb-.
func IsBalancerID(id string) bool { return strings.HasPrefix(id, "lb-") }

// ReplicaID returns the id that a new replica in a region gets: us-0, us-1, ... for the service's first model. For
// further models the id also contains the model's short name. An existing replica keeps its id, and a new one gets
// another id if this one is taken: package cloud decides on both. model is the index in spec.Models, and ordinal is the
// replica's number among those of the model in the region.
func ReplicaID(spec *service.Spec, model int, region service.Region, ordinal int) string {
	id := region.ShortName()
	if model > 0 {
		id += "-" + ShortName(&spec.Models[model])
	}
	return id + "-" + strconv.Itoa(ordinal)
}

// ReplicaOrdinal returns the number after the last hyphen of an id; 0 if there is none.
func ReplicaOrdinal(id string) int {
	n, err := strconv.Atoi(id[strings.LastIndex(id, "-")+1:])
	if err != nil {
		return 0
	}
	return n
}

// ShortName returns a model's first alias, else the last part of its name, reduced to the characters
// allowed in an id.
func ShortName(m *service.Model) string {
	name := m.Name[strings.LastIndex(m.Name, "/")+1:]
	if len(m.Aliases) > 0 {
		name = m.Aliases[0]
	}
	words := strings.FieldsFunc(strings.ToLower(name), func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9')
	})
	return strings.Join(words, "-")
}

// ConfigHash returns 96 bits of the SHA-256 of a configuration as JSON, in hexadecimal. That is enough
// for the configurations of one service not to collide. A configuration that cannot be marshalled is
// an error.
func ConfigHash(config any) (string, error) {
	text, err := json.Marshal(config)
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:12]), err
}
