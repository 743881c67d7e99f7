"""Commands for people: training, evaluation, the app, the command line. Only these read strings and write folders."""
