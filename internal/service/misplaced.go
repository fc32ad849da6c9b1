package service

import (
	"reflect"
	"sync"
)

// keyPlaces returns the paths of service.yaml that end with each key, such as regions[].replicas.
var keyPlaces = sync.OnceValue(func() map[string][]string {
	places := map[string][]string{}
	addPlaces(places, reflect.TypeFor[Spec](), "")
	return places
})

// addPlaces adds the paths of the keys of a type, which are below prefix.
func addPlaces(places map[string][]string, t reflect.Type, prefix string) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case t.Kind() == reflect.Slice:
		addPlaces(places, t.Elem(), prefix+"[]")
	case t.Kind() == reflect.Map:
		addPlaces(places, t.Elem(), prefix+".NAME")
	case t.Kind() == reflect.Struct && t.PkgPath() == reflect.TypeFor[Spec]().PkgPath():
		if prefix != "" {
			prefix += "."
		}
		for _, f := range fieldsOf(t) {
			if f.key == "" || f.key == "-" {
				continue
			}
			at := prefix + f.key
			places[f.key] = append(places[f.key], at)
			addPlaces(places, t.Field(f.index).Type, at)
		}
	}
}

// listenKeys are keys at the top of a service file that are meant as the address for clients. None of the sections has
// such a key.
var listenKeys = map[string]bool{"listen": true, "port": true}

// suggestListen is the suggestion for listenKeys.
const suggestListen = "set local.port to choose the port for clients of the first balancer on this machine; its host is always 127.0.0.1"

// suggestScaleToZero is the suggestion for a key with the name of the feature, which has none.
const suggestScaleToZero = "set regions[].replicas.min to 0, and autoscale.strategy to one that changes the number of replicas"

// placeOf returns the only path that ends with a key; empty if there is none or several.
func placeOf(key string) string {
	if places := keyPlaces()[key]; len(places) == 1 {
		return places[0]
	}
	return ""
}
