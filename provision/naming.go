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

// ControllerID is the id of a service's controller.
const ControllerID = "controller"

// NameServerID is the id of the machine that answers a service's public name.
const NameServerID = "nameserver"

// BalancerID names the nth balancer of a region: lb-us-0.
func BalancerID(region service.Region, n int) string {
	return fmt.Sprintf("lb-%s-%d", region.Place(), n)
}

// IsBalancerID says whether an id is one that balancers have, and nothing else.
func IsBalancerID(id string) bool { return strings.HasPrefix(id, "lb-") }

// ReplicaID names a replica of a region: those of the service's first model
// us-0, us-1, ...; those of further models carry the model's short name too. model
// is its index in spec.Models.
func ReplicaID(spec *service.Spec, model int, region service.Region, number int) string {
	id := region.Place()
	if model > 0 {
		id += "-" + ShortName(&spec.Models[model])
	}
	return id + "-" + strconv.Itoa(number)
}

// ReplicaNumber is the number in an id that ReplicaID made; 0 for other ids.
func ReplicaNumber(id string) int {
	n, err := strconv.Atoi(id[strings.LastIndex(id, "-")+1:])
	if err != nil {
		return 0
	}
	return n
}

// ShortName is a model's first alias, else the end of its name, in the letters
// that an id may have.
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

// HashOf is 96 bits of the SHA-256 of a configuration as JSON, in hexadecimal: no
// two configurations of one service meet. What JSON cannot say is an error.
func HashOf(config any) (string, error) {
	text, err := json.Marshal(config)
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:12]), err
}
