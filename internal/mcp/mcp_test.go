package mcp

import "testing"

func TestHolderOf(t *testing.T) {
	for key, want := range map[string]Holder{
		PrincipalKey("NAME", "WHO", "PROXY"):      {Principal: true, Who: "WHO", Proxy: "PROXY"},
		PrincipalKey("NAME", "WHO", ""):           {Principal: true, Who: "WHO"},
		PrincipalKey("NAME", "WHO", "PROXY")[:10]: {Principal: true, Who: "WHO"},
		ConnectionKey("NAME", "WHO"):              {Who: "WHO"},
		ConnectionKey("NAME", "WHO") + "-3":       {Who: "WHO"}, // the third session that is kept for it
		ConnectionKey("NAME", ""):                 {},
		"p-NAME-PROXY":                            {Principal: true, Who: "NAME", Proxy: "PROXY"}, // of a proxy that says no more
		"NAME":                                    {Who: "NAME"},
		"":                                        {},
	} {
		if got := HolderOf(key); got != want {
			t.Errorf("%q: %+v, want %+v", key, got, want)
		}
	}
}
