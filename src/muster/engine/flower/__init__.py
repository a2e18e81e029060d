"""The Flower engine: the same experiment on a real federation. Needs the extra `flower`.

`wire` says how orders and answers look as messages; `client` is what a node does with them; `mail`, `identity` and
`engine` are the server's side; `client_app` and `server_app` make Flower apps of them.
"""
